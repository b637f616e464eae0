// Round float32 rows to bfloat16, or to 8 bits per group of 32; written once, compiled for every instruction set.
// 8 bits: scale = largest magnitude / 127. A group with a value that is not finite gets scale NaN, so it stays visible
// in its row and nowhere else; a group whose values all lie below 2^-100 becomes zero.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "layout.h"
#include "level.h"

namespace slipstream {
namespace {

constexpr float kNothing = 7.9e-31f;  // 2^-100

// Copies one group of a row to v[32], zeros after the row's end.
SLIPSTREAM_INLINE void read_group(const float* x, int cols, int group, float* v) {
  int begin = group * 32, count = cols - begin < 32 ? cols - begin : 32;
  std::memcpy(v, x + begin, sizeof(float) * count);
  for (int i = count; i < 32; i++) v[i] = 0;
}

SLIPSTREAM_INLINE float sum32(const float* v) {
  float part[8];
  for (int i = 0; i < 8; i++) part[i] = (v[i] + v[i + 8]) + (v[i + 16] + v[i + 24]);
  return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

SLIPSTREAM_INLINE void round_bf16_group(const float* v, uint16_t* out, float* sum) {
  uint32_t bits[32];
  std::memcpy(bits, v, sizeof bits);
  for (int i = 0; i < 32; i++) {
    uint32_t b = bits[i], near = (b + 0x7fff + ((b >> 16) & 1)) & 0xffff0000u;
    bits[i] = (b & 0x7fffffffu) > 0x7f800000u ? (b | 0x400000u) & 0xffff0000u : near;
  }
  for (int i = 0; i < 32; i++) out[i] = static_cast<uint16_t>(bits[i] >> 16);
  float rounded[32];
  std::memcpy(rounded, bits, sizeof rounded);
  *sum = sum32(rounded);
}

// factors: scale, scale times the sum of the codes, and as int32 where sums of products with weights raised by 128 begin.
SLIPSTREAM_INLINE void round_byte_group(const float* v, int8_t* out, float* factors) {
  float largest = 0, poison = 0;
  for (int i = 0; i < 32; i++) {
    float magnitude = std::fabs(v[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  for (int i = 0; i < 32; i++) poison += v[i] * 0.0f;
  bool usable = largest >= kNothing && poison == 0;
  float inverse = usable ? 127 / largest : 0, scale = (usable ? largest / 127 : 0) + poison;
  int32_t codes[32], total = 0;
  // adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even
  for (int i = 0; i < 32; i++) codes[i] = usable ? static_cast<int32_t>((v[i] * inverse + 12582912.0f) - 12582912.0f) : 0;
  for (int i = 0; i < 32; i++) total += codes[i];
  for (int q = 0; q < 8; q++)
    for (int b = 0; b < 4; b++) out[q * 4 + b] = static_cast<int8_t>(codes[q * 4 + layout::kQuad[b]]);
  factors[0] = scale;
  factors[1] = scale * static_cast<float>(total);
  const int32_t start = layout::kStart - 128 * total;
  std::memcpy(factors + 2, &start, sizeof start);
}

template <bool kBytes>
SLIPSTREAM_INLINE void round_tasks(const Rounding& job) {
  for (int task = job.first; task < job.last; task++) {
    int local = task / job.groups, group = task % job.groups, row = job.row + local;
    size_t place = static_cast<size_t>(row / 16) * job.groups + group;
    float v[32];
    read_group(job.x + static_cast<size_t>(local) * job.stride, job.cols, group, v);
    float* factors = job.factors + place * layout::kFactors + row % 16 * layout::kRowFactors;
    if (kBytes)
      round_byte_group(v, reinterpret_cast<int8_t*>(job.values + place * layout::kByteRows) + row % 16 * 32, factors);
    else
      round_bf16_group(v, reinterpret_cast<uint16_t*>(job.values + place * layout::kBf16Rows) + row % 16 * 32,
                       factors + 1);
  }
}

void round_bf16_rows(const Rounding& job) { round_tasks<false>(job); }
void round_byte_rows(const Rounding& job) { round_tasks<true>(job); }

}  // namespace
}  // namespace slipstream
