// Products of 8-bit numbers row by row with AVX-512 byte dot products (VNNI).
//
// All rows of a chunk go through a group side by side, so that many chains of additions run at once, and their totals
// stay in registers over a strip. VNNI wants one side unsigned: signed weights are raised by 128, and sums begin with
// what that adds taken away. Sums begin at layout::kStart besides: read as a float, a sum is that number plus the product,
// and taking d times that number off d times the sum is exact but for one rounding, that of d times the product.
#pragma once

#include <utility>

#include "vectors_avx512.h"

namespace slipstream {
namespace {

constexpr int kChains = 12;  // sums that registers hold beside the totals
constexpr int kShared = 8;   // most rows whose activations are loaded once for both tiles of a block

// Vector q of a tile as unsigned bytes.
template <class Store>
SLIPSTREAM_INLINE __m512i quad(const uint8_t* tile, int q) {
  const __m512i low = _mm512_set1_epi8(15), raise = _mm512_set1_epi8(static_cast<char>(0x80));
  if (!Store::kFour) return _mm512_xor_si512(_mm512_load_si512(tile + q * 64), raise);
  const __m512i both = _mm512_load_si512(tile + q % 4 * 64);
  return _mm512_and_si512(q < 4 ? both : _mm512_srli_epi16(both, 4), low);
}

// total += sum * d * scale + shift, with `back` = -d times the number that sums begin with.
template <class Store>
SLIPSTREAM_INLINE __m512 add_sum(__m512 total, __m512i sum, const Scale& s, __m512 back, const float* factors) {
  const __m512 real = _mm512_fmadd_ps(_mm512_castsi512_ps(sum), s.d, back);
  return add_shift<Store::kShifted>(_mm512_fmadd_ps(real, _mm512_set1_ps(factors[0]), total), s, factors);
}

// One group of kTiles tiles times kCount rows, added to totals [row][tile].
template <class Store, int kCount, int kTiles>
SLIPSTREAM_INLINE void add_quads(const uint8_t* codes, const Scale* s, const uint8_t* x, const float* factors,
                                 __m512* totals) {
  const __m512i start = _mm512_set1_epi32(layout::kStart);
  __m512i c[kCount][kTiles];
#pragma GCC unroll 12
  for (int r = 0; r < kCount; r++)
    for (int t = 0; t < kTiles; t++) c[r][t] = Store::kFour ? start : spread(factors + r * layout::kRowFactors + 2);
#pragma GCC unroll 8
  for (int step = 0; step < 8; step++) {
    const int q = step / 2 + step % 2 * 4;  // both nibbles of a vector
    __m512i w[kTiles];
    for (int t = 0; t < kTiles; t++) w[t] = quad<Store>(codes + t * Store::kTileCodes, q);
#pragma GCC unroll 12
    for (int r = 0; r < kCount; r++) {
      const __m512i four = spread(x + r * 32 + q * 4);
      for (int t = 0; t < kTiles; t++) c[r][t] = _mm512_dpbusd_epi32(c[r][t], w[t], four);
    }
  }
  for (int t = 0; t < kTiles; t++) {
    const __m512 back = _mm512_mul_ps(s[t].d, _mm512_set1_ps(-layout::kStartValue));
#pragma GCC unroll 12
    for (int r = 0; r < kCount; r++) {
      __m512& total = totals[r * kTiles + t];
      total = add_sum<Store>(total, c[r][t], s[t], back, factors + r * layout::kRowFactors);
    }
  }
}

template <class Store, int kRows, int kTiles>
void quad_strip(const Strip& strip, int tile) {
  constexpr int kFirst = kRows * kTiles > kChains ? (kRows + 1) / 2 : kRows, kSecond = kRows - kFirst;
  constexpr int kLines = (Store::kBytes * kTiles / 2 + 63) / 64;
  __m512 totals[kRows * kTiles];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++)
    for (int t = 0; t < kTiles; t++) totals[r * kTiles + t] = open_total(strip, r, tile + t);
  const uint8_t* x = strip.job.values + strip.place(strip.first) * layout::kByteRows;
  const uint8_t* next = strip.next + tile * (strip.last - strip.first) * kLines * 64;
  Scales<Store> scales[kTiles];
  for (int group = strip.first; group < strip.last; group++, x += layout::kByteRows) {
    fetch<kLines>(next);
    Scale s[kTiles];
    for (int t = 0; t < kTiles; t++) s[t] = Scales<Store>::next(scales[t], strip.block, group, tile + t);
    const uint8_t* codes = Store::at(strip.block, group) + tile * Store::kTileCodes;
    add_quads<Store, kFirst, kTiles>(codes, s, x, strip.factors(group), totals);
    if constexpr (kSecond > 0)
      add_quads<Store, kSecond, kTiles>(codes, s, x + kFirst * 32, strip.factors(group, kFirst), totals + kFirst * kTiles);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++)
    for (int t = 0; t < kTiles; t++) close_total(strip, r, tile + t, totals[r * kTiles + t]);
}

template <class Store, int kRows>
void quad_rows(const Strip& strip) {
  if constexpr (kRows <= kShared) {
    quad_strip<Store, kRows, 2>(strip, 0);
  } else {
    quad_strip<Store, kRows, 1>(strip, 0);
    quad_strip<Store, kRows, 1>(strip, 1);
  }
}

// kRows: the sequence 0 .. most rows of a chunk - 1.
template <class Store, int... kRows>
void by_quads(const Product& job, std::integer_sequence<int, kRows...>) {
  static constexpr void (*kStrips[])(const Strip&) = {quad_rows<Store, kRows + 1>...};
  each_strip<Store>(job, [](const Strip& strip) { kStrips[strip.count - 1](strip); });
}

template <class Store>
void by_quads(const Product& job) {
  by_quads<Store>(job, std::make_integer_sequence<int, 16>());
}

}  // namespace
}  // namespace slipstream
