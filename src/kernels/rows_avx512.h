// Products row by row with AVX-512 dot products of bfloat16 pairs (BF16).
//
// A row's total never depends on how many share the pass: every chain of additions belongs to one row.
#pragma once

#include "vectors_avx512.h"

namespace slipstream {
namespace {

constexpr int kTogether = 4;  // rows that share a load of the weights

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

// One group, widened to `pairs`, times kCount rows, added to their totals [row][32].
template <class Store, int kCount>
SLIPSTREAM_INLINE void add_pairs(const uint8_t* pairs, const Scale* s, const uint8_t* x, const float* factors,
                                 float* totals) {
  __m512 c[kCount][2];
  for (int r = 0; r < kCount; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
  dot_pairs<kCount>(pairs, x, c);
  for (int r = 0; r < kCount; r++)
    for (int t = 0; t < 2; t++) {
      float* total = totals + r * 32 + t * 16;
      const __m512 sum = _mm512_load_ps(total);
      _mm512_store_ps(total, add_scaled<Store::kShifted>(sum, c[r][t], s[t], factors + r * layout::kRowFactors));
    }
}

// Weights in groups with scales: a group is widened once, rows run over it four at a time.
template <class Store>
SLIPSTREAM_INLINE void add_group(const Strip& strip, int group, const uint8_t* x, float* totals) {
  alignas(64) uint8_t pairs[2048];
  Scale s[2];
  for (int t = 0; t < 2; t++) {
    const uint8_t* tile = Store::at(strip.block, group) + t * Store::kTileCodes;
    Store::kFour ? widen_four(tile, pairs + t * 1024) : widen_eight(tile, pairs + t * 1024);
    s[t] = Store::scale(strip.block, group, t);
  }
  int r = 0;
  for (; r + kTogether <= strip.count; r += kTogether)
    add_pairs<Store, kTogether>(pairs, s, x + r * 64, strip.factors(group, r), totals + r * 32);
  for (; r < strip.count; r++) add_pairs<Store, 1>(pairs, s, x + r * 64, strip.factors(group, r), totals + r * 32);
}

template <class Store>
void by_pairs(const Product& job) {
  alignas(64) float totals[16 * 32];
  each_strip<Store>(job, [&](const Strip& strip) {
    for (int r = 0; r < strip.count; r++)
      for (int t = 0; t < 2; t++) _mm512_store_ps(totals + r * 32 + t * 16, open_total(strip, r, t));
    const uint8_t* x = job.values + strip.place(strip.first) * layout::kBf16Rows;
    const uint8_t* next = strip.next;
    for (int group = strip.first; group < strip.last; group++, x += layout::kBf16Rows) {
      fetch<(Store::kBytes + 63) / 64>(next);
      add_group<Store>(strip, group, x, totals);
    }
    for (int r = 0; r < strip.count; r++)
      for (int t = 0; t < 2; t++) close_total(strip, r, t, _mm512_load_ps(totals + r * 32 + t * 16));
  });
}

}  // namespace
}  // namespace slipstream
