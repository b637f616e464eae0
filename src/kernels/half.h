// Half floats and bfloat16 as numbers, for code that runs once per model. A copy in each
// file: files are compiled for several instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

namespace slipstream {

static inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline float float_of_bf16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

// Nearest, ties to even; a NaN stays one.
static inline uint16_t bf16_of_float(float value) {
  uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float float_of_half(uint16_t half) {
  uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  if ((half & 0x7c00) == 0x7c00) return float_of_bits(sign | 0x7f800000u | static_cast<uint32_t>(half & 0x3ff) << 13);
  float scaled = float_of_bits(static_cast<uint32_t>(half & 0x7fff) << 13) * float_of_bits(0x77800000u);  // 2^112
  return float_of_bits(bits_of_float(scaled) | sign);
}

// Nearest, ties to even; above the range: infinity.
static inline uint16_t half_of_float(float value) {
  uint32_t bits = bits_of_float(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and up
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, rounded by adding 0.5
    float shifted = float_of_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of_float(shifted) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13));
}

}  // namespace slipstream
