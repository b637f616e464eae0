// The product in vectors of any width, for instruction sets without dot products of bfloat16 or bytes.
//
// Each group of weights is expanded once to float32 [32 inputs][32 columns]; every row then multiplies it. Activations
// are exact in float32 too: a group's product of 8-bit numbers stays below 2^24, so its sum has no rounding at all.
// The including file sets SLIPSTREAM_LANES (floats per vector) and SLIPSTREAM_MADD(a, b, c) = a * b + c.
#pragma once

#include <cstdint>
#include <cstring>

#include "layout.h"
#include "level.h"
#include "rounding.h"

namespace slipstream {
namespace {

typedef float Lanes __attribute__((vector_size(SLIPSTREAM_LANES * 4)));
constexpr int kVectors = 32 / SLIPSTREAM_LANES;  // one row of a block

struct Group {
  alignas(64) float w[32][32];  // [input][column], codes or bfloat16 values
  alignas(64) float d[32], m[32];
};

SLIPSTREAM_INLINE float half_value(uint16_t half) {
  uint32_t bits = static_cast<uint32_t>(half & 0x7fff) << 13, sign = static_cast<uint32_t>(half & 0x8000) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  value *= 5.192296858534828e33f;  // 2^112: from the exponents of half floats to those of float32
  std::memcpy(&bits, &value, 4);
  bits |= ((half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u) | sign;
  std::memcpy(&value, &bits, 4);
  return value;
}

SLIPSTREAM_INLINE void read_halves(const uint8_t* from, float* to) {
  uint16_t halves[32];
  std::memcpy(halves, from, sizeof halves);
  for (int c = 0; c < 32; c++) to[c] = half_value(halves[c]);
}

SLIPSTREAM_INLINE void expand_bf16(const uint8_t* codes, Group& g) {
  for (int t = 0; t < 2; t++)
    for (int r = 0; r < 16; r++) {
      uint32_t lane[16];
      std::memcpy(lane, codes + t * 1024 + r * 64, sizeof lane);
      uint32_t even[16], odd[16];
      for (int c = 0; c < 16; c++) even[c] = lane[c] << 16;
      for (int c = 0; c < 16; c++) odd[c] = lane[c] & 0xffff0000u;
      std::memcpy(&g.w[2 * r][t * 16], even, sizeof even);
      std::memcpy(&g.w[2 * r + 1][t * 16], odd, sizeof odd);
    }
}

SLIPSTREAM_INLINE void expand_four(const uint8_t* codes, Group& g) {
  for (int t = 0; t < 2; t++)
    for (int v = 0; v < 4; v++) {
      uint32_t lane[16];
      std::memcpy(lane, codes + t * 256 + v * 64, sizeof lane);
      for (int i = 0; i < 8; i++) {
        float* to = &g.w[4 * (v + 4 * (i & 1)) + layout::kQuad[i >> 1]][t * 16];
        for (int c = 0; c < 16; c++) to[c] = static_cast<float>(static_cast<int32_t>((lane[c] >> (4 * i)) & 15));
      }
    }
}

SLIPSTREAM_INLINE void expand_eight(const uint8_t* codes, Group& g) {
  for (int t = 0; t < 2; t++)
    for (int r = 0; r < 8; r++) {
      uint32_t lane[16];
      std::memcpy(lane, codes + t * 512 + r * 64, sizeof lane);
      for (int b = 0; b < 4; b++) {
        float* to = &g.w[4 * r + layout::kQuad[b]][t * 16];
        for (int c = 0; c < 16; c++) to[c] = static_cast<float>(static_cast<int32_t>(lane[c] << (24 - 8 * b)) >> 24);
      }
    }
}

SLIPSTREAM_INLINE void super_scales(const uint8_t* header, const uint8_t* scales, Group& g) {
  read_halves(header, g.d);
  read_halves(header + 64, g.m);
  for (int c = 0; c < 32; c++) g.d[c] *= static_cast<float>(scales[c]);
  for (int c = 0; c < 32; c++) g.m[c] *= static_cast<float>(scales[32 + c]);
}

// Storage: how one group of a block is found and expanded.
struct StoreBf16 {
  static constexpr bool kScaled = false, kShifted = false;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * layout::kBf16Group; }
  static void expand(const uint8_t* block, int group, Group& g) {
    expand_bf16(block + static_cast<size_t>(group) * layout::kBf16Group, g);
  }
};

struct StoreHalf {
  static constexpr bool kScaled = true, kShifted = true;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * layout::kHalfGroup; }
  static void expand(const uint8_t* block, int group, Group& g) {
    const uint8_t* codes = block + static_cast<size_t>(group) * layout::kHalfGroup;
    expand_four(codes, g);
    read_halves(codes + layout::kFourCodes, g.d);
    read_halves(codes + layout::kFourCodes + 64, g.m);
  }
};

struct StoreSuper {
  static constexpr bool kScaled = true, kShifted = true;
  static size_t block_bytes(int groups) { return layout::super_offset(groups) - layout::kHeader; }
  static void expand(const uint8_t* block, int group, Group& g) {
    const uint8_t* codes = block + layout::super_offset(group);
    expand_four(codes, g);
    super_scales(block + layout::super_offset(group / 8 * 8) - layout::kHeader, codes + layout::kFourCodes, g);
  }
};

struct StoreEight {
  static constexpr bool kScaled = true, kShifted = false;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * layout::kEightGroup; }
  static void expand(const uint8_t* block, int group, Group& g) {
    const uint8_t* codes = block + static_cast<size_t>(group) * layout::kEightGroup;
    expand_eight(codes, g);
    read_halves(codes + layout::kEightCodes, g.d);
  }
};

// One row's 32 activations as float32, in the order of the inputs.
template <bool kBytes>
SLIPSTREAM_INLINE void read_activations(const uint8_t* values, int row, float* x) {
  if (kBytes) {
    const int8_t* codes = reinterpret_cast<const int8_t*>(values) + row * 32;
    for (int q = 0; q < 8; q++)
      for (int b = 0; b < 4; b++) x[q * 4 + layout::kQuad[b]] = static_cast<float>(codes[q * 4 + b]);
  } else {
    const uint16_t* bits = reinterpret_cast<const uint16_t*>(values) + row * 32;
    uint32_t wide[32];
    for (int i = 0; i < 32; i++) wide[i] = static_cast<uint32_t>(bits[i]) << 16;
    std::memcpy(x, wide, sizeof wide);
  }
}

// total[32] += the row's product with the group.
template <class Store, bool kBytes>
SLIPSTREAM_INLINE void add_group(const Group& g, const float* x, const float* factors, float* total) {
  Lanes c[kVectors] = {};
  for (int k = 0; k < 32; k++)
    for (int i = 0; i < kVectors; i++) {
      Lanes w;
      std::memcpy(&w, &g.w[k][i * SLIPSTREAM_LANES], sizeof w);
      c[i] = SLIPSTREAM_MADD(w, (Lanes{} + x[k]), c[i]);
    }
  for (int i = 0; i < kVectors; i++) {
    Lanes sum, d, m;
    std::memcpy(&sum, total + i * SLIPSTREAM_LANES, sizeof sum);
    if (kBytes) c[i] = c[i] * factors[0];
    if (Store::kScaled) {
      std::memcpy(&d, g.d + i * SLIPSTREAM_LANES, sizeof d);
      sum = SLIPSTREAM_MADD(c[i], d, sum);
    } else {
      sum = sum + c[i];
    }
    if (Store::kShifted) {
      std::memcpy(&m, g.m + i * SLIPSTREAM_LANES, sizeof m);
      sum = SLIPSTREAM_MADD(m, (Lanes{} + factors[16]), sum);
    }
    std::memcpy(total + i * SLIPSTREAM_LANES, &sum, sizeof sum);
  }
}

SLIPSTREAM_INLINE void write_rows(const Product& job, int block, int row, int count, const float* totals) {
  int column = block * 32, width = job.out - column < 32 ? job.out - column : 32;
  for (int r = 0; r < count; r++)
    for (int c = 0; c < width; c++)
      job.y[static_cast<size_t>(row + r) * job.stride + column + c] =
          totals[r * 32 + c] + (job.bias ? job.bias[column + c] : 0.0f);
}

template <class Store, bool kBytes>
void product(const Product& job) {
  Group g;
  alignas(64) float totals[16 * 32], x[32];
  for (int block = job.first; block < job.last; block++) {
    const uint8_t* codes = job.codes + block * Store::block_bytes(job.groups);
    for (int row = 0; row < job.rows; row += 16) {
      int count = job.rows - row < 16 ? job.rows - row : 16;
      std::memset(totals, 0, sizeof totals);
      for (int group = 0; group < job.groups; group++) {
        size_t place = static_cast<size_t>(row / 16) * job.groups + group;
        const uint8_t* values = job.values + place * (kBytes ? layout::kByteRows : layout::kBf16Rows);
        Store::expand(codes, group, g);
        for (int r = 0; r < count; r++) {
          read_activations<kBytes>(values, r, x);
          add_group<Store, kBytes>(g, x, job.factors + place * layout::kFactors + r, totals + r * 32);
        }
      }
      write_rows(job, block, row, count, totals);
    }
  }
}

const LevelTable kTable = {round_bf16_rows,           round_byte_rows,          product<StoreBf16, false>,
                           product<StoreHalf, false>, product<StoreSuper, false>, product<StoreEight, false>,
                           product<StoreHalf, true>,  product<StoreSuper, true>,  product<StoreEight, true>};

}  // namespace
}  // namespace slipstream
