// The product for x86 with AVX2 and the byte dot product in 256-bit registers (AVX-VNNI).
#include "level.h"

#if defined(__AVXVNNI__) && defined(__FMA__) && defined(__F16C__)

#include "vectors_avx2.h"

namespace slipstream {
namespace {

struct Small {
  SLIPSTREAM_INLINE Ints add(Ints sum, Ints codes, Ints quad) {
    return Ints(_mm256_dpbusd_avx_epi32(__m256i(sum), __m256i(codes), __m256i(quad)));
  }
  SLIPSTREAM_INLINE Ints finish(Ints sum) { return sum; }
};

// One side has to be unsigned: the sign of a code moves to the activation.
struct Signed {
  SLIPSTREAM_INLINE Ints add(Ints sum, Ints codes, Ints quad) {
    const __m256i size = _mm256_abs_epi8(__m256i(codes)), x = _mm256_sign_epi8(__m256i(quad), __m256i(codes));
    return Ints(_mm256_dpbusd_avx_epi32(__m256i(sum), size, x));
  }
  SLIPSTREAM_INLINE Ints finish(Ints sum) { return sum; }
};

}  // namespace
}  // namespace slipstream

#include "gemm_bytes.h"

namespace slipstream {

const LevelTable* avxvnni_table() { return &kTable; }

}  // namespace slipstream

#else

namespace slipstream {

const LevelTable* avxvnni_table() { return nullptr; }

}  // namespace slipstream

#endif
