// Products row by row with AVX-512 dot products of bfloat16 pairs (BF16) and byte quads (VNNI).
//
// Each group is widened once into the first-level cache; rows then run over it four at a time. A row's total never
// depends on how many share the pass: every chain of additions belongs to one row.
#pragma once

#include "vectors_avx512.h"

namespace slipstream {
namespace {

constexpr int kTogether = 4;  // rows that share a load of the weights

SLIPSTREAM_INLINE __m512i spread(const uint8_t* four) {
  int32_t word;
  std::memcpy(&word, four, 4);
  return _mm512_set1_epi32(word);
}

// Sixteen input pairs of up to four rows (64 bytes apart) times a group of bfloat16 pairs; c[row][tile] goes on.
template <int kCount>
SLIPSTREAM_INLINE void dot_pairs(const uint8_t* pairs, const uint8_t* x, __m512 (*c)[2]) {
#pragma GCC unroll 4
  for (int p = 0; p < 16; p++) {
    __m512bh left = (__m512bh)_mm512_load_si512(pairs + p * 64);
    __m512bh right = (__m512bh)_mm512_load_si512(pairs + 1024 + p * 64);
    for (int r = 0; r < kCount; r++) {
      __m512bh pair = (__m512bh)spread(x + r * 64 + p * 4);
      c[r][0] = _mm512_dpbf16_ps(c[r][0], left, pair);
      c[r][1] = _mm512_dpbf16_ps(c[r][1], right, pair);
    }
  }
}

// Eight quads of up to four rows (32 bytes apart) times a group of bytes. VNNI wants one side unsigned: signed weights
// are raised by 128, and 128 times the sum of the row's codes is taken away.
template <bool kSigned, int kCount>
SLIPSTREAM_INLINE void dot_quads(const uint8_t* quads, const uint8_t* x, const float* factors, __m512i (*c)[2]) {
  const __m512i raise = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int r = 0; r < kCount; r++) {
    int32_t sum;
    std::memcpy(&sum, factors + 32 + r, 4);
    c[r][0] = c[r][1] = kSigned ? _mm512_set1_epi32(-128 * sum) : _mm512_setzero_si512();
  }
#pragma GCC unroll 8
  for (int q = 0; q < 8; q++) {
    __m512i left = _mm512_load_si512(quads + q * 64), right = _mm512_load_si512(quads + 512 + q * 64);
    if (kSigned) left = _mm512_xor_si512(left, raise), right = _mm512_xor_si512(right, raise);
    for (int r = 0; r < kCount; r++) {
      __m512i quad = spread(x + r * 32 + q * 4);
      c[r][0] = _mm512_dpbusd_epi32(c[r][0], left, quad);
      c[r][1] = _mm512_dpbusd_epi32(c[r][1], right, quad);
    }
  }
}

template <bool kShifted, int kCount, class Product32>
SLIPSTREAM_INLINE void add_rows(const Scale& s, Product32 (*c)[2], const float* factors, float* totals) {
  for (int r = 0; r < kCount; r++)
    for (int t = 0; t < 2; t++) {
      float* total = totals + r * 32 + t * 16;
      _mm512_store_ps(total, add_scaled<kShifted>(_mm512_load_ps(total), c[r][t], s.d[t], s.m[t], factors + r));
    }
}

// Weights in groups with scales; activations in bfloat16.
template <class Store>
struct PairRows {
  static constexpr int kRowBytes = 64;
  SLIPSTREAM_INLINE const uint8_t* widen(const uint8_t* codes, uint8_t* wide) {
    for (int t = 0; t < 2; t++)
      Store::kFour ? widen_four(codes + t * 256, wide + t * 1024) : widen_eight(codes + t * 512, wide + t * 1024);
    return wide;
  }
  template <int kCount>
  SLIPSTREAM_INLINE void add(const uint8_t* wide, const Scale& s, const uint8_t* x, const float* factors, float* totals) {
    __m512 c[kCount][2];
    for (int r = 0; r < kCount; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
    dot_pairs<kCount>(wide, x, c);
    add_rows<Store::kShifted, kCount>(s, c, factors, totals);
  }
};

// The same with 8-bit activations.
template <class Store>
struct QuadRows {
  static constexpr int kRowBytes = 32;
  SLIPSTREAM_INLINE const uint8_t* widen(const uint8_t* codes, uint8_t* wide) {
    if (!Store::kFour) return codes;
    for (int t = 0; t < 2; t++) widen_bytes(codes + t * 256, wide + t * 512);
    return wide;
  }
  template <int kCount>
  SLIPSTREAM_INLINE void add(const uint8_t* wide, const Scale& s, const uint8_t* x, const float* factors, float* totals) {
    __m512i c[kCount][2];
    dot_quads<!Store::kFour, kCount>(wide, x, factors, c);
    add_rows<Store::kShifted, kCount>(s, c, factors, totals);
  }
};

template <class Form>
SLIPSTREAM_INLINE void add_chunk(const uint8_t* wide, const Scale& s, const uint8_t* x, const float* factors, int count,
                                 float* totals) {
  int r = 0;
  for (; r + kTogether <= count; r += kTogether)
    Form::template add<kTogether>(wide, s, x + r * Form::kRowBytes, factors + r, totals + r * 32);
  for (; r < count; r++) Form::template add<1>(wide, s, x + r * Form::kRowBytes, factors + r, totals + r * 32);
}

template <class Store, class Form>
void by_rows(const Product& job) {
  alignas(64) uint8_t wide[2048];
  alignas(64) float totals[16 * 32];
  for (int block = job.first; block < job.last; block++) {
    const uint8_t* start = job.codes + block * Store::block_bytes(job.groups);
    for (int row = 0; row < job.rows; row += 16) {
      int count = job.rows - row < 16 ? job.rows - row : 16;
      std::memset(totals, 0, sizeof totals);
      const size_t chunk = static_cast<size_t>(row / 16) * job.groups;
      for (int g = 0; g < job.groups; g++) {
        const uint8_t* codes = Store::at(start, g);
        prefetch<Store::kBytes>(codes);
        Scale s;
        Store::scales(start, g, codes, s);
        add_chunk<Form>(Form::widen(codes, wide), s, job.values + (chunk + g) * 16 * Form::kRowBytes,
                        job.factors + (chunk + g) * layout::kFactors, count, totals);
      }
      write_totals(job, block, row, count, totals, 32);
    }
  }
}

}  // namespace
}  // namespace slipstream
