// The product for 64-bit Arm: four floats at a time with fused multiply-add.
#include "level.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#define SLIPSTREAM_LANES 4
#define SLIPSTREAM_MADD(a, b, c) Lanes(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)))
#include "gemm_rows.h"

namespace slipstream {

const LevelTable* neon_table() { return &kTable; }

}  // namespace slipstream

#else

namespace slipstream {

const LevelTable* neon_table() { return nullptr; }

}  // namespace slipstream

#endif
