// Where a packed weight lies. One layout for every level, so a matrix packed once runs on all of them.
//
// A block is 32 outputs (two tiles of 16 columns) by 32 inputs (one group). A tile is a list of 64-byte vectors, and
// column c owns the 32-bit lane c of each: the form that tile units and dot-product instructions read directly.
//   bf16   tile of 16 vectors; vector r, lane c: inputs 2r and 2r+1
//   eight  tile of 8 vectors; vector r, lane c: inputs 4r + kQuad[byte]
//   four   tile of 4 vectors; vector v, lane c, nibble i: input 4 * (v + 4 * (i & 1)) + kQuad[i >> 1]
// The order 0 2 1 3 inside a quad lets one 4-bit layout be read as bytes (low nibbles, then high nibbles) and as 16-bit
// pairs of neighbours. Activations rounded to 8 bits are kept in the same order.
// Scales follow the codes of their group: half floats d[32], m[32] (four, half), bytes d[32], m[32] (four, super),
// half floats d[32] (eight). With super scales, 8 groups share a header in front: half floats d[32], m[32].
//
// Only constants and forced-inline functions: this file is compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#define SLIPSTREAM_INLINE static inline __attribute__((always_inline))

namespace slipstream {
namespace layout {

constexpr int kTileColumns = 16;
constexpr int kTiles = 2;
constexpr int kVector = 64;  // bytes
constexpr int kSuperGroups = 8;
constexpr int kQuad[4] = {0, 2, 1, 3};

constexpr int kBf16Codes = 2048, kEightCodes = 1024, kFourCodes = 512;
constexpr int kHeader = 128;
constexpr int kBf16Group = kBf16Codes;
constexpr int kEightGroup = kEightCodes + 64;
constexpr int kHalfGroup = kFourCodes + 128;
constexpr int kSuperGroup = kFourCodes + 64;

// Prepared activations: bytes of one group of a chunk of 16 rows.
constexpr int kBf16Rows = 16 * 32 * 2;
constexpr int kByteRows = 16 * 32;
constexpr int kRowFactors = 4;  // floats of one row, side by side: threads that prepare rows should share few lines
constexpr int kFactors = kRowFactors * 16;
constexpr float kStartValue = 12582912.0f;  // 1.5 * 2^23
constexpr int kStart = 0x4b400000;  // its bits; with an integer added to them, that much more

SLIPSTREAM_INLINE size_t super_offset(int group) {
  return static_cast<size_t>(group / kSuperGroups + 1) * kHeader + static_cast<size_t>(group) * kSuperGroup;
}

}  // namespace layout
}  // namespace slipstream
