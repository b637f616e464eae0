// The product for any processor: plain C++, four floats at a time.
#define SLIPSTREAM_LANES 4
#define SLIPSTREAM_MADD(a, b, c) ((a) * (b) + (c))
#include "gemm_rows.h"

namespace slipstream {

const LevelTable* portable_table() { return &kTable; }

}  // namespace slipstream
