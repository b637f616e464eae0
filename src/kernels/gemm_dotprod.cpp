// The product for 64-bit Arm with the byte dot product of Armv8.2.
#include "level.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#include "vectors_neon.h"

namespace slipstream {
namespace {

struct Signed {
  SLIPSTREAM_INLINE Ints add(Ints sum, Ints codes, Ints quad) {
    return Ints(vdotq_s32(int32x4_t(sum), int8x16_t(codes), int8x16_t(quad)));
  }
  SLIPSTREAM_INLINE Ints finish(Ints sum) { return sum; }
};
using Small = Signed;

}  // namespace
}  // namespace slipstream

#include "gemm_bytes.h"

namespace slipstream {

const LevelTable* dotprod_table() { return &kTable; }

}  // namespace slipstream

#else

namespace slipstream {

const LevelTable* dotprod_table() { return nullptr; }

}  // namespace slipstream

#endif
