// Rounding groups of 32 weights, and the values that finer blocks stand for; included once per level, compiled for it.
#pragma once

#include "groups.h"
#include "half.h"
#include "simd.h"

namespace slipstream::SLIPSTREAM_VARIANT {

inline uint16_t load16(const uint8_t* from) { return static_cast<uint16_t>(from[0] | from[1] << 8); }

// A group of 32 numbers in registers.
struct Group {
  Vec low, high;
};

inline Group group_of(const float* x) { return {load(x), load(x + kVec)}; }
inline float total(const Group& g) { return sum(add(g.low, g.high)); }
inline Group times(const Group& a, const Group& b) { return {mul(a.low, b.low), mul(a.high, b.high)}; }

inline Vec codes_of(const Vec& values, const Vec& shift, const Vec& inverse) {
  Vec code = larger(set(0), mul(add(values, shift), inverse));  // a NaN becomes 0
  return nearest(smaller(set(15), code));
}

inline Group codes_of(const Group& values, float d, float m) {
  const Vec shift = set(-m), inverse = set(d != 0 ? 1 / d : 0);
  return {codes_of(values.low, shift, inverse), codes_of(values.high, shift, inverse)};
}

// The squared error that these codes leave.
inline float error_of(const Group& values, const Group& codes, float d, float m) {
  const Vec minus = set(-d), shift = set(-m);
  Vec low = add(add(values.low, shift), mul(codes.low, minus));
  Vec high = add(add(values.high, shift), mul(codes.high, minus));
  return sum(add(mul(low, low), mul(high, high)));
}

// The d and m that fit these codes best; false when all codes are equal.
inline bool fit(const Group& values, const Group& codes, float& d, float& m) {
  const float n = 32, q = total(codes), w = total(values);
  const float spread = n * total(times(codes, codes)) - q * q;
  if (spread <= 0) return false;
  d = (n * total(times(codes, values)) - q * w) / spread;
  m = (w - d * q) / n;
  return true;
}

inline void round_to_eight(const float* values, GroupCodes& group) {
  const Group x = group_of(values);
  const Vec top = larger(larger(x.low, mul(x.low, set(-1))), larger(x.high, mul(x.high, set(-1))));
  group.d = half_of_float(largest(top) / 127);
  const float d = float_of_half(group.d);
  const Vec inverse = set(d > 0 ? 1 / d : 0), most = set(127), least = set(-127);
  float codes[32];
  store(codes, nearest(smaller(most, larger(least, mul(x.low, inverse)))));
  store(codes + kVec, nearest(smaller(most, larger(least, mul(x.high, inverse)))));
  for (int i = 0; i < 32; i++) group.eight[i] = static_cast<int8_t>(codes[i]);
}

inline void round_to_four(const float* values, GroupCodes& group) {
  const Group x = group_of(values), minus = {mul(x.low, set(-1)), mul(x.high, set(-1))};
  const float high = largest(larger(x.low, x.high)), low = -largest(larger(minus.low, minus.high));
  float d = (high - low) / 15, m = low, best = -1;
  float kept[32] = {};
  for (int round = 0; round < 4; round++) {
    const uint16_t half_d = half_of_float(d), half_m = half_of_float(m);
    const float used_d = float_of_half(half_d), used_m = float_of_half(half_m);
    const Group codes = codes_of(x, used_d, used_m);
    const float error = error_of(x, codes, used_d, used_m);
    if (best >= 0 && !(error < best)) break;
    best = error;
    group.d = half_d;
    group.m = half_m;
    store(kept, codes.low);
    store(kept + kVec, codes.high);
    if (!fit(x, codes, d, m)) break;
  }
  for (int i = 0; i < 32; i++) group.four[i] = static_cast<uint8_t>(kept[i]);
}

inline void values_of_q8_0(const uint8_t* block, float* values) {
  const float d = float_of_half(load16(block));
  for (int i = 0; i < 32; i++) values[i] = d * static_cast<int8_t>(block[2 + i]);
}

inline void values_of_q5_0(const uint8_t* block, float* values) {
  const float d = float_of_half(load16(block));
  const uint32_t fifth = load16(block + 2) | static_cast<uint32_t>(load16(block + 4)) << 16;
  for (int i = 0; i < 32; i++) {
    const int four = i < 16 ? block[6 + i] & 15 : block[6 + i - 16] >> 4;
    values[i] = d * static_cast<float>((four | static_cast<int>(fifth >> i & 1) << 4) - 16);
  }
}

inline void values_of_q6_k(const uint8_t* block, int group, float* values) {
  const int half = group / 4, part = group % 4;  // two halves of 128, each in four parts with bits of their own
  const uint8_t *low = block + half * 64 + part % 2 * 32, *high = block + 128 + half * 32;
  const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192 + half * 8 + part * 2);
  const float d = float_of_half(load16(block + 208));
  const int nibble = part / 2 * 4, pair = part * 2;
  int8_t codes[32];
  for (int i = 0; i < 32; i++)
    codes[i] = static_cast<int8_t>((low[i] >> nibble & 15) | (high[i] >> pair & 3) << 4) - 32;
  for (int first = 0; first < 32; first += 16) {
    const float step = d * scales[first / 16];
    for (int i = first; i < first + 16; i++) values[i] = step * codes[i];
  }
}

constexpr GroupOps kGroups = {round_to_eight, round_to_four, values_of_q8_0, values_of_q5_0, values_of_q6_k};

}  // namespace slipstream::SLIPSTREAM_VARIANT
