// The product for x86 with AVX2 and FMA: eight floats at a time.
#include "level.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#define SLIPSTREAM_LANES 8
#define SLIPSTREAM_MADD(a, b, c) Lanes(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)))
#include "gemm_rows.h"

namespace slipstream {

const LevelTable* avx2_table() { return &kTable; }

}  // namespace slipstream

#else

namespace slipstream {

const LevelTable* avx2_table() { return nullptr; }

}  // namespace slipstream

#endif
