// Round float32 rows to bfloat16, or to 8 bits per group of 32; written once, compiled for every instruction set.
// 8 bits: scale = largest magnitude / 127. A group with a value that is not finite gets scale NaN, so it stays visible
// in its row and nowhere else; a group whose values all lie below 2^-100 becomes zero.
#pragma once

#include <cstdint>
#include <cstring>

#include "layout.h"
#include "level.h"

namespace slipstream {
namespace {

constexpr float kNothing = 7.9e-31f;  // 2^-100

// One group of a row: where it lies, or in `padded` with zeros after the row's end.
SLIPSTREAM_INLINE const float* read_group(const float* x, int cols, int group, float* padded) {
  const int begin = group * 32, count = cols - begin;
  if (count >= 32) return x + begin;
  std::memset(padded, 0, sizeof(float) * 32);
  std::memcpy(padded, x + begin, sizeof(float) * count);
  return padded;
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

typedef float Floats8 __attribute__((vector_size(32)));
typedef int32_t Ints8 __attribute__((vector_size(32)));
typedef uint32_t Words8 __attribute__((vector_size(32)));

// factors: scale, scale times the sum of the codes, and as int32 where sums of products with weights raised by 128 begin.
SLIPSTREAM_INLINE void round_byte_group(const float* v, int8_t* out, float* factors) {
  Floats8 x[4], most = {}, odd = {};  // odd: NaN where a value is not finite, else 0
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    std::memcpy(&x[i], v + 8 * i, sizeof x[i]);
    const Floats8 size = Floats8(Ints8(x[i]) & 0x7fffffff);
    most = size > most ? size : most;
    odd += x[i] * 0.0f;
  }
  float largest = most[0], poison = odd[0];
#pragma GCC unroll 8
  for (int k = 1; k < 8; k++) {
    largest = most[k] > largest ? most[k] : largest;
    poison += odd[k];
  }
  const bool usable = largest >= kNothing && poison == 0;
  const float scale = (usable ? largest / 127 : 0) + poison;
  Ints8 codes[4] = {};
  int32_t total = 0;
  if (usable) {
    const float inverse = 127 / largest;
    // adding 1.5 * 2^23 rounds to the nearest integer, ties to even, which its bits then count from
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) codes[i] = Ints8(x[i] * inverse + layout::kStartValue) - layout::kStart;
    const Ints8 sums = (codes[0] + codes[1]) + (codes[2] + codes[3]);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) total += sums[k];
  }
  int32_t wide[32];
  int8_t narrow[32];
  Words8 quads;
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) std::memcpy(wide + 8 * i, &codes[i], sizeof codes[i]);
  for (int i = 0; i < 32; i++) narrow[i] = static_cast<int8_t>(wide[i]);
  std::memcpy(&quads, narrow, sizeof quads);
  static_assert(layout::kQuad[1] == 2 && layout::kQuad[2] == 1, "the middle two of a quad change places");
  quads = (quads & 0xff0000ffu) | (quads >> 8 & 0xff00u) | (quads & 0xff00u) << 8;
  std::memcpy(out, &quads, sizeof quads);
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
    float padded[32];
    const float* v = read_group(job.x + static_cast<size_t>(local) * job.stride, job.cols, group, padded);
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
