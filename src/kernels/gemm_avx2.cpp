// The product for x86 with AVX2, FMA and F16C.
#include "level.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "vectors_avx2.h"

namespace slipstream {
namespace {

SLIPSTREAM_INLINE Ints add_pairs(__m256i pairs) { return Ints(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))); }

// A pair of codes below 16 times 8-bit numbers is below 2^12: eight of them fit into 16 bits.
struct Small {
  SLIPSTREAM_INLINE Ints add(Ints sum, Ints codes, Ints quad) {
    return Ints(_mm256_add_epi16(__m256i(sum), _mm256_maddubs_epi16(__m256i(codes), __m256i(quad))));
  }
  SLIPSTREAM_INLINE Ints finish(Ints sum) { return add_pairs(__m256i(sum)); }
};

// One side has to be unsigned: the sign of a code moves to the activation. A pair is at most 2 * 128 * 127.
struct Signed {
  SLIPSTREAM_INLINE Ints add(Ints sum, Ints codes, Ints quad) {
    const __m256i size = _mm256_abs_epi8(__m256i(codes)), x = _mm256_sign_epi8(__m256i(quad), __m256i(codes));
    return sum + add_pairs(_mm256_maddubs_epi16(size, x));
  }
  SLIPSTREAM_INLINE Ints finish(Ints sum) { return sum; }
};

}  // namespace
}  // namespace slipstream

#include "gemm_bytes.h"

namespace slipstream {

const LevelTable* avx2_table() { return &kTable; }

}  // namespace slipstream

#else

namespace slipstream {

const LevelTable* avx2_table() { return nullptr; }

}  // namespace slipstream

#endif
