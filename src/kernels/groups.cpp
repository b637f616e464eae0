#include "groups.h"

#include <cstring>

#include "half.h"
#include "simd.h"

namespace slipstream {
namespace {

uint16_t load16(const uint8_t* from) { return static_cast<uint16_t>(from[0] | from[1] << 8); }

using namespace SLIPSTREAM_VARIANT;

// A group of 32 numbers in registers.
struct Group {
  Vec low, high;
};

Group group_of(const float* x) { return {load(x), load(x + kVec)}; }
float total(const Group& g) { return sum(add(g.low, g.high)); }
Group times(const Group& a, const Group& b) { return {mul(a.low, b.low), mul(a.high, b.high)}; }

Vec codes_of(const Vec& values, const Vec& shift, const Vec& inverse) {
  Vec code = larger(set(0), mul(add(values, shift), inverse));  // a NaN becomes 0
  return nearest(smaller(set(15), code));
}

Group codes_of(const Group& values, float d, float m) {
  const Vec shift = set(-m), inverse = set(d != 0 ? 1 / d : 0);
  return {codes_of(values.low, shift, inverse), codes_of(values.high, shift, inverse)};
}

// The squared error that these codes leave.
float error_of(const Group& values, const Group& codes, float d, float m) {
  const Vec minus = set(-d), shift = set(-m);
  Vec low = add(add(values.low, shift), mul(codes.low, minus));
  Vec high = add(add(values.high, shift), mul(codes.high, minus));
  return sum(add(mul(low, low), mul(high, high)));
}

// The d and m that fit these codes best; false when all codes are equal.
bool fit(const Group& values, const Group& codes, float& d, float& m) {
  const float n = 32, q = total(codes), w = total(values);
  const float spread = n * total(times(codes, codes)) - q * q;
  if (spread <= 0) return false;
  d = (n * total(times(codes, values)) - q * w) / spread;
  m = (w - d * q) / n;
  return true;
}

}  // namespace

void round_to_eight(const float* values, GroupCodes& group) {
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

void round_to_four(const float* values, GroupCodes& group) {
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

void read_q4_0(const uint8_t* block, GroupCodes& group) {
  group.d = load16(block);
  group.m = half_of_float(-8 * float_of_half(group.d));
  for (int i = 0; i < 16; i++) {
    group.four[i] = block[2 + i] & 15;
    group.four[16 + i] = block[2 + i] >> 4;
  }
}

void read_q4_1(const uint8_t* block, GroupCodes& group) {
  group.d = load16(block);
  group.m = load16(block + 2);
  for (int i = 0; i < 16; i++) {
    group.four[i] = block[4 + i] & 15;
    group.four[16 + i] = block[4 + i] >> 4;
  }
}

void read_q8_0(const uint8_t* block, GroupCodes& group) {
  group.d = load16(block);
  std::memcpy(group.eight, block + 2, 32);
}

void read_q4_k(const uint8_t* block, SuperCodes& super) {
  super.d = load16(block);
  super.m = load16(block + 2) ^ 0x8000;
  const uint8_t* six = block + 4;  // 12 bytes: low six bits of groups 0-3, then groups 4-7 in nibbles and high bits
  for (int g = 0; g < 4; g++) {
    super.scale[g] = six[g] & 63;
    super.min[g] = six[g + 4] & 63;
    super.scale[g + 4] = static_cast<uint8_t>((six[g + 8] & 15) | (six[g] >> 6) << 4);
    super.min[g + 4] = static_cast<uint8_t>((six[g + 8] >> 4) | (six[g + 4] >> 6) << 4);
  }
  for (int pair = 0; pair < 4; pair++)
    for (int i = 0; i < 32; i++) {
      uint8_t both = block[16 + pair * 32 + i];
      super.four[2 * pair][i] = both & 15;
      super.four[2 * pair + 1][i] = both >> 4;
    }
}

}  // namespace slipstream
