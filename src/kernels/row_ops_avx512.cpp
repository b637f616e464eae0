// Row operations, attention, laws and groups of weights, compiled for level avx512.
#include "groups_impl.h"
#include "laws_impl.h"
#include "row_ops_impl.h"

namespace slipstream {

const RowOps kRowOpsAvx512 = SLIPSTREAM_VARIANT::kTable;
const GroupOps kGroupsAvx512 = SLIPSTREAM_VARIANT::kGroups;
const LawOps kLawOpsAvx512 = SLIPSTREAM_VARIANT::kLaws;

}  // namespace slipstream
