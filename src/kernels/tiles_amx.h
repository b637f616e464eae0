// What products in AMX tiles share: shapes, and the fences that the intrinsics lack.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "layout.h"

namespace slipstream {
namespace {

// The shapes of the eight tiles; whole ones unless said otherwise.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

SLIPSTREAM_INLINE void load_shapes(const TileShapes& shapes) {
  // the intrinsic does not say that it reads the whole struct, and compilers drop the stores into it
  asm volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
}

// The tile intrinsics do not tell the compiler that they read and write memory.
SLIPSTREAM_INLINE void settle() { asm volatile("" : : : "memory"); }

}  // namespace
}  // namespace slipstream
