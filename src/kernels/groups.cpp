#include "groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"

namespace slipstream {
namespace {

uint16_t load16(const uint8_t* from) { return static_cast<uint16_t>(from[0] | from[1] << 8); }

// Codes for these scales, and the squared error they leave.
double codes_for(const float* values, float d, float m, uint8_t* codes) {
  double error = 0;
  float inverse = d != 0 ? 1 / d : 0;
  for (int i = 0; i < 32; i++) {
    float code = std::nearbyint((values[i] - m) * inverse);
    codes[i] = static_cast<uint8_t>(std::clamp(code, 0.0f, 15.0f));
    double gap = static_cast<double>(values[i]) - (codes[i] * d + m);
    error += gap * gap;
  }
  return error;
}

// The d and m that fit these codes best; false when all codes are equal.
bool fit(const float* values, const uint8_t* codes, float& d, float& m) {
  double n = 32, q = 0, qq = 0, w = 0, qw = 0;
  for (int i = 0; i < 32; i++) {
    q += codes[i];
    qq += codes[i] * codes[i];
    w += values[i];
    qw += codes[i] * static_cast<double>(values[i]);
  }
  double spread = n * qq - q * q;
  if (spread <= 0) return false;
  d = static_cast<float>((n * qw - q * w) / spread);
  m = static_cast<float>((w - d * q) / n);
  return true;
}

}  // namespace

void round_to_eight(const float* values, GroupCodes& group) {
  float largest = 0;
  for (int i = 0; i < 32; i++) largest = std::max(largest, std::fabs(values[i]));
  group.d = half_of_float(largest / 127);
  float d = float_of_half(group.d), inverse = d > 0 ? 1 / d : 0;
  for (int i = 0; i < 32; i++) {
    float code = std::nearbyint(values[i] * inverse);
    group.eight[i] = static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f));
  }
}

void round_to_four(const float* values, GroupCodes& group) {
  auto [low, high] = std::minmax_element(values, values + 32);
  float d = (*high - *low) / 15, m = *low;
  double best = -1;
  for (int round = 0; round < 4; round++) {
    uint16_t half_d = half_of_float(d), half_m = half_of_float(m);
    uint8_t codes[32];
    double error = codes_for(values, float_of_half(half_d), float_of_half(half_m), codes);
    if (best >= 0 && error >= best) return;
    best = error;
    group.d = half_d;
    group.m = half_m;
    std::memcpy(group.four, codes, sizeof codes);
    if (!fit(values, codes, d, m)) return;
  }
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
