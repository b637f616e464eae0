// Numbers in -1..1, the same on every machine.
#pragma once

#include <cstdint>
#include <vector>

inline float number(uint32_t seed) {
  seed = (seed ^ 61) ^ (seed >> 16);
  seed *= 9;
  seed ^= seed >> 4;
  seed *= 0x27d4eb2d;
  return static_cast<float>(static_cast<int32_t>(seed ^ (seed >> 15)) >> 8) / (1 << 23);
}

inline std::vector<float> numbers(size_t count, uint32_t seed) {
  std::vector<float> all(count);
  for (size_t i = 0; i < count; i++) all[i] = number(static_cast<uint32_t>(i) * 7 + seed);
  return all;
}
