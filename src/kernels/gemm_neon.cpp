// The product for 64-bit Arm.
#include "level.h"

#if defined(__aarch64__)

#include "vectors_neon.h"

namespace slipstream {

const LevelTable* neon_table() { return &kFloatTable; }

}  // namespace slipstream

#else

namespace slipstream {

const LevelTable* neon_table() { return nullptr; }

}  // namespace slipstream

#endif
