// Products row by row with AVX-512 dot products of bfloat16 pairs (BF16) and byte quads (VNNI).
//
// A row's total never depends on how many share the pass: every chain of additions belongs to one row.
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

// Weights in groups with scales, activations in bfloat16: a group is widened once, rows run over it four at a time.
template <class Store>
struct PairRows {
  static constexpr int kRowBytes = 64;
  alignas(64) uint8_t wide[2048];

  SLIPSTREAM_INLINE void open(PairRows& own, const uint8_t* codes) {
    for (int t = 0; t < 2; t++) {
      const uint8_t* tile = codes + t * Store::kTileCodes;
      Store::kFour ? widen_four(tile, own.wide + t * 1024) : widen_eight(tile, own.wide + t * 1024);
    }
  }
  template <int kCount>
  SLIPSTREAM_INLINE void multiply(const PairRows& own, const uint8_t* x, const float*, __m512 (*c)[2]) {
    for (int r = 0; r < kCount; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
    dot_pairs<kCount>(own.wide, x, c);
  }
  using Real = __m512;
  static constexpr int kMost = kTogether;
};

// The same with 8-bit activations: a group's sixteen vectors stay in registers, rows run over them one by one. VNNI wants
// one side unsigned: signed weights are raised by 128, and 128 times the sum of the row's codes is taken away.
template <class Store>
struct QuadRows {
  static constexpr int kRowBytes = 32;
  __m512i quads[2][8];

  SLIPSTREAM_INLINE void open(QuadRows& own, const uint8_t* codes) {
    const __m512i low = _mm512_set1_epi8(15), raise = _mm512_set1_epi8(static_cast<char>(0x80));
#pragma GCC unroll 2
    for (int t = 0; t < 2; t++) {
      const uint8_t* tile = codes + t * Store::kTileCodes;
#pragma GCC unroll 4
      for (int v = 0; v < 4; v++) {
        __m512i lane = _mm512_load_si512(tile + v * 64);
        own.quads[t][v] = Store::kFour ? _mm512_and_si512(lane, low) : _mm512_xor_si512(lane, raise);
        own.quads[t][v + 4] = Store::kFour ? _mm512_and_si512(_mm512_srli_epi16(lane, 4), low)
                                           : _mm512_xor_si512(_mm512_load_si512(tile + (v + 4) * 64), raise);
      }
    }
  }
  template <int kCount>
  SLIPSTREAM_INLINE void multiply(const QuadRows& own, const uint8_t* x, const float* factors, __m512i (*c)[2]) {
    int32_t sum;
    std::memcpy(&sum, factors + 32, 4);
    c[0][0] = c[0][1] = Store::kFour ? _mm512_setzero_si512() : _mm512_set1_epi32(-128 * sum);
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
      __m512i quad = spread(x + q * 4);
      c[0][0] = _mm512_dpbusd_epi32(c[0][0], own.quads[0][q], quad);
      c[0][1] = _mm512_dpbusd_epi32(c[0][1], own.quads[1][q], quad);
    }
  }
  using Real = __m512i;
  static constexpr int kMost = 1;
};

template <class Store, class Form, int kCount>
SLIPSTREAM_INLINE void add_rows(const Form& own, const Scale* s, const uint8_t* x, const float* factors, float* totals) {
  typename Form::Real c[kCount][2];
  Form::template multiply<kCount>(own, x, factors, c);
  for (int r = 0; r < kCount; r++)
    for (int t = 0; t < 2; t++) {
      float* total = totals + r * 32 + t * 16;
      _mm512_store_ps(total, add_scaled<Store::kShifted>(_mm512_load_ps(total), c[r][t], s[t], factors + r));
    }
}

template <class Store, class Form>
SLIPSTREAM_INLINE void add_group(const Strip& strip, int group, const uint8_t* x, float* totals) {
  Form own;
  Form::open(own, Store::at(strip.block, group));
  const Scale s[2] = {Store::scale(strip.block, group, 0), Store::scale(strip.block, group, 1)};
  const float* factors = strip.factors(group);
  int r = 0;
  for (; r + Form::kMost <= strip.count; r += Form::kMost)
    add_rows<Store, Form, Form::kMost>(own, s, x + r * Form::kRowBytes, factors + r, totals + r * 32);
  for (; r < strip.count; r++)
    add_rows<Store, Form, 1>(own, s, x + r * Form::kRowBytes, factors + r, totals + r * 32);
}

template <class Store, class Form>
void by_rows(const Product& job) {
  alignas(64) float totals[16 * 32];
  each_strip<Store>(job, [&](const Strip& strip) {
    for (int r = 0; r < strip.count; r++)
      for (int t = 0; t < 2; t++) _mm512_store_ps(totals + r * 32 + t * 16, open_total(strip, r, t));
    const uint8_t* x = job.values + strip.place(strip.first) * 16 * Form::kRowBytes;
    const uint8_t* next = strip.next;
    for (int group = strip.first; group < strip.last; group++, x += 16 * Form::kRowBytes) {
      fetch<(Store::kBytes + 63) / 64>(next);
      add_group<Store, Form>(strip, group, x, totals);
    }
    for (int r = 0; r < strip.count; r++)
      for (int t = 0; t < 2; t++) close_total(strip, r, t, _mm512_load_ps(totals + r * 32 + t * 16));
  });
}

}  // namespace
}  // namespace slipstream
