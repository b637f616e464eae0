// Row operations and attention, compiled for level portable.
#include "row_ops_impl.h"

namespace slipstream {

const RowOps kRowOpsPortable = SLIPSTREAM_VARIANT::kTable;

}  // namespace slipstream
