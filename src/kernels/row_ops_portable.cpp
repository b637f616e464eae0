// Row operations, attention, laws and groups of weights, compiled for level portable.
#include "groups_impl.h"
#include "laws_impl.h"
#include "row_ops_impl.h"

namespace slipstream {

const RowOps kRowOpsPortable = SLIPSTREAM_VARIANT::kTable;
const GroupOps kGroupsPortable = SLIPSTREAM_VARIANT::kGroups;
const LawOps kLawOpsPortable = SLIPSTREAM_VARIANT::kLaws;

}  // namespace slipstream
