// Packed groups in AVX-512 registers: codes widened for dot products, scales, and the step that adds a group's product
// to a row's total. Shared by the avx512 and amx levels, which therefore agree on everything but bfloat16 sums.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "layout.h"
#include "level.h"

namespace slipstream {
namespace {

constexpr int kAhead = 8192;  // bytes that prefetching, into the second-level cache, runs ahead of the codes in use

template <int kBytes>
SLIPSTREAM_INLINE void prefetch(const uint8_t* codes) {
#pragma GCC unroll 32
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + i), _MM_HINT_T1);
}

// d and m of one group: columns 0-15 and 16-31.
struct Scale {
  __m512 d[2], m[2];
};

SLIPSTREAM_INLINE __m512 halves(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
}

SLIPSTREAM_INLINE __m512 bytes(const uint8_t* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from))));
}

// Storages: where a group lies, how it is widened, its scales.
struct HalfGroups {
  static constexpr int kBytes = layout::kHalfGroup;
  static constexpr bool kShifted = true, kFour = true;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * kBytes; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * kBytes; }
  SLIPSTREAM_INLINE void scales(const uint8_t*, int, const uint8_t* codes, Scale& s) {
    for (int t = 0; t < 2; t++) s.d[t] = halves(codes + layout::kFourCodes + t * 32);
    for (int t = 0; t < 2; t++) s.m[t] = halves(codes + layout::kFourCodes + 64 + t * 32);
  }
};

struct SuperGroups {
  static constexpr int kBytes = layout::kSuperGroup;
  static constexpr bool kShifted = true, kFour = true;
  static size_t block_bytes(int groups) { return layout::super_offset(groups) - layout::kHeader; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + layout::super_offset(group); }
  SLIPSTREAM_INLINE void scales(const uint8_t* block, int group, const uint8_t* codes, Scale& s) {
    const uint8_t* header = block + layout::super_offset(group & ~7) - layout::kHeader;
    const uint8_t* factors = codes + layout::kFourCodes;
    for (int t = 0; t < 2; t++) s.d[t] = _mm512_mul_ps(halves(header + t * 32), bytes(factors + t * 16));
    for (int t = 0; t < 2; t++) s.m[t] = _mm512_mul_ps(halves(header + 64 + t * 32), bytes(factors + 32 + t * 16));
  }
};

constexpr float kWiden = 1.0f / (1 << 24);  // undoes the factor of widen_eight

// kWidened: the codes are multiplied in the form of widen_eight.
template <bool kWidened>
struct EightGroups {
  static constexpr int kBytes = layout::kEightGroup;
  static constexpr bool kShifted = false, kFour = false;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * kBytes; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * kBytes; }
  SLIPSTREAM_INLINE void scales(const uint8_t*, int, const uint8_t* codes, Scale& s) {
    for (int t = 0; t < 2; t++) {
      s.d[t] = halves(codes + layout::kEightCodes + t * 32);
      if (kWidened) s.d[t] = _mm512_mul_ps(s.d[t], _mm512_set1_ps(kWiden));
    }
    s.m[0] = s.m[1] = _mm512_setzero_ps();
  }
};

// 4-bit codes as bfloat16 pairs: 16 vectors of a tile. A code is an index into a table of the numbers 0 to 15; the
// table is there twice because the instruction looks at five bits and the fifth belongs to the next code.
SLIPSTREAM_INLINE void widen_four(const uint8_t* codes, uint8_t* pairs) {
  alignas(64) static const uint16_t kNumbers[32] = {
      0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
      0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
      0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
  const __m512i numbers = _mm512_load_si512(kNumbers);
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    __m512i lane = _mm512_load_si512(codes + v * 64);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {  // nibble j of each 16-bit half: vector 2 * (v + 4 * (j & 1)) + (j >> 1)
      __m512i pair = _mm512_permutexvar_epi16(j ? _mm512_srli_epi16(lane, 4 * j) : lane, numbers);
      _mm512_store_si512(pairs + (2 * (v + 4 * (j & 1)) + (j >> 1)) * 64, pair);
    }
  }
}

// 8-bit codes times 2^24 as bfloat16 pairs: 16 vectors of a tile. A byte moved to the top of its lane, with zeros below,
// converts without being sign-extended first; small integers are exact, so rounding is dropping low bits.
SLIPSTREAM_INLINE void widen_eight(const uint8_t* codes, uint8_t* pairs) {
  const int high = static_cast<int>(0xffff0000u);
  __m512i top[4];  // for each byte of a lane: where it goes; 0x80 clears
  for (int b = 0; b < 4; b++) top[b] = _mm512_set4_epi32(0x0c808080 + b * 0x01000000, 0x08808080 + b * 0x01000000,
                                                         0x04808080 + b * 0x01000000, 0x00808080 + b * 0x01000000);
#pragma GCC unroll 8
  for (int r = 0; r < 8; r++) {
    __m512i lane = _mm512_load_si512(codes + r * 64);
    __m512i number[4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++)
      number[b] = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_shuffle_epi8(lane, top[b])));
#pragma GCC unroll 2
    for (int b = 0; b < 2; b++) {  // bytes 0 and 2 are neighbours, then 1 and 3
      constexpr int kOrOfAnd = 0xf8;  // a | (b & c)
      __m512i pair = _mm512_ternarylogic_epi32(_mm512_srli_epi32(number[b], 16), number[b + 2], _mm512_set1_epi32(high),
                                               kOrOfAnd);
      _mm512_store_si512(pairs + (2 * r + b) * 64, pair);
    }
  }
}

// 4-bit codes as bytes: 8 vectors of a tile.
SLIPSTREAM_INLINE void widen_bytes(const uint8_t* codes, uint8_t* quads) {
  const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    __m512i both = _mm512_load_si512(codes + v * 64);
    _mm512_store_si512(quads + v * 64, _mm512_and_si512(both, low));
    _mm512_store_si512(quads + (v + 4) * 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
  }
}

// total += product * d + sum * m, for 16 columns of one row.
template <bool kShifted>
SLIPSTREAM_INLINE __m512 add_scaled(__m512 total, __m512 product, __m512 d, __m512 m, const float* factors) {
  total = _mm512_fmadd_ps(product, d, total);
  return kShifted ? _mm512_fmadd_ps(_mm512_set1_ps(factors[16]), m, total) : total;
}

// The same for a product of 8-bit numbers.
template <bool kShifted>
SLIPSTREAM_INLINE __m512 add_scaled(__m512 total, __m512i product, __m512 d, __m512 m, const float* factors) {
  __m512 real = _mm512_mul_ps(_mm512_cvtepi32_ps(product), _mm512_set1_ps(factors[0]));
  return add_scaled<kShifted>(total, real, d, m, factors);
}

// Adds the bias to totals [count][stride] and writes the block's 32 columns.
SLIPSTREAM_INLINE void write_totals(const Product& job, int block, int row, int count, const float* totals,
                                    int stride) {
  int width = job.out - block * 32;
  __mmask16 mask[2] = {static_cast<__mmask16>(width >= 16 ? 0xffff : (1 << width) - 1),
                       static_cast<__mmask16>(width >= 32 ? 0xffff : width <= 16 ? 0 : (1 << (width - 16)) - 1)};
  for (int t = 0; t < 2; t++) {
    __m512 bias = job.bias ? _mm512_loadu_ps(job.bias + block * 32 + t * 16) : _mm512_setzero_ps();
    float* y = job.y + static_cast<size_t>(row) * job.stride + block * 32 + t * 16;
    for (int r = 0; r < count; r++, y += job.stride)
      _mm512_mask_storeu_ps(y, mask[t], _mm512_add_ps(_mm512_load_ps(totals + r * stride + t * 16), bias));
  }
}

}  // namespace
}  // namespace slipstream
