// Row operations and attention, compiled for level avx2.
#include "row_ops_impl.h"

namespace slipstream {

const RowOps kRowOpsAvx2 = SLIPSTREAM_VARIANT::kTable;

}  // namespace slipstream
