// Row operations and attention, compiled for level avx512.
#include "row_ops_impl.h"

namespace slipstream {

const RowOps kRowOpsAvx512 = SLIPSTREAM_VARIANT::kTable;

}  // namespace slipstream
