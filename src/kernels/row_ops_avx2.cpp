// Row operations, attention, laws and groups of weights, compiled for level avx2.
#include "groups_impl.h"
#include "laws_impl.h"
#include "row_ops_impl.h"

namespace slipstream {

const RowOps kRowOpsAvx2 = SLIPSTREAM_VARIANT::kTable;
const GroupOps kGroupsAvx2 = SLIPSTREAM_VARIANT::kGroups;
const LawOps kLawOpsAvx2 = SLIPSTREAM_VARIANT::kLaws;

}  // namespace slipstream
