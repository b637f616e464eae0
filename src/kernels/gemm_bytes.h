// Products with 8-bit activations by instructions that multiply bytes; for levels of gemm_rows.h.
//
// A group's product is a sum of integers, exact whatever the instructions: levels differ in speed, not in bits.
// The including file defines Small and Signed: add(sum, codes, quad) adds to each 32-bit lane (or two 16-bit halves of
// it) the products of its four codes, 0..15 or -128..127, with four activations; finish(sum) returns 32-bit sums.
#pragma once

#include "gemm_rows.h"  // with the macros it asks for

namespace slipstream {
namespace {

template <class Store>
struct ByteForm {
  static constexpr int kRowBytes = 32;
  const uint8_t* x;

  SLIPSTREAM_INLINE void widen_rows(ByteForm& form, const uint8_t* values, int) { form.x = values; }
  SLIPSTREAM_INLINE Ints quad(const uint8_t* x, int index) { return read<int32_t>(x + index * 4) - Ints{}; }

  template <int kCount>
  SLIPSTREAM_INLINE void multiply(const uint8_t* x, const uint8_t* lanes, Ints* c) {
    if constexpr (Store::kSteps == 8) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; v++) {
        const Words lane = read<Words>(lanes + v * 64);
        const Ints low = Ints(lane & 0x0f0f0f0fu), high = Ints((lane >> 4) & 0x0f0f0f0fu);
        for (int r = 0; r < kCount; r++) c[r] = Small::add(c[r], low, quad(x + r * 32, v));
        for (int r = 0; r < kCount; r++) c[r] = Small::add(c[r], high, quad(x + r * 32, v + 4));
      }
      for (int r = 0; r < kCount; r++) c[r] = Small::finish(c[r]);
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < 8; v++) {
        const Ints lane = read<Ints>(lanes + v * 64);
        for (int r = 0; r < kCount; r++) c[r] = Signed::add(c[r], lane, quad(x + r * 32, v));
      }
      for (int r = 0; r < kCount; r++) c[r] = Signed::finish(c[r]);
    }
  }

  template <int kCount>
  SLIPSTREAM_INLINE void add(const ByteForm& form, int row, const uint8_t* lanes, const Scale& s, const float* factors,
                             float* totals) {
    Ints c[kCount] = {};
    multiply<kCount>(form.x + row * kRowBytes, lanes, c);
    for (int r = 0; r < kCount; r++)
      add_scaled<Store, true>(__builtin_convertvector(c[r], Lanes), s, factors + r * layout::kRowFactors, totals + r * 32);
  }
};

constexpr LevelTable kTable = {round_bf16_rows,
                           round_byte_rows,
                           kFloatTable.bf16,
                           kFloatTable.half,
                           kFloatTable.super,
                           kFloatTable.eight,
                           product<StoreHalf, ByteForm<StoreHalf>>,
                           product<StoreSuper, ByteForm<StoreSuper>>,
                           product<StoreEight, ByteForm<StoreEight>>};

}  // namespace
}  // namespace slipstream
