// Products with 8-bit activations by instructions that multiply bytes; for levels of gemm_rows.h.
//
// A group's product is a sum of integers, exact whatever the instructions: levels differ in speed, not in bits.
// The including file defines Small and Signed: add(sum, codes, quad) adds to each 32-bit lane (or two 16-bit halves of
// it) the products of its four codes, 0..15 or -128..127, with four activations; finish(sum) returns 32-bit sums.
// SLIPSTREAM_NOW(x) has register x computed where it stands: compilers may put sums of integers off until what they add
// up no longer fits into registers.
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

  // Adds the products of codes w with quad `index` of each row.
  template <class With, int kCount, int kSide>
  SLIPSTREAM_INLINE void meet(const Ints (&w)[kSide], const uint8_t* x, int index, Ints (&c)[kCount][kSide]) {
    each<kCount>([&](auto r) SLIPSTREAM_HERE {
      const Ints q = quad(x + r * kRowBytes, index);
      each<kSide>([&](auto i) SLIPSTREAM_HERE {
        c[r][i] = With::add(c[r][i], w[i], q);
        SLIPSTREAM_NOW(c[r][i]);
      });
    });
  }

  template <int kCount>
  SLIPSTREAM_INLINE void add(const ByteForm& form, int row, const uint8_t* codes, int column, const Scale& s,
                             const float* factors, float* totals) {
    constexpr int kSide = side(kCount);
    constexpr bool kFour = Store::kSteps == 8;
    const uint8_t* x = form.x + row * kRowBytes;
    Ints c[kCount][kSide] = {};
#pragma GCC unroll 1
    for (int v = 0; v < Store::kCodes / 128; v++) {
      Words lane[kSide];
      Ints w[kSide];
      each<kSide>([&](auto i) SLIPSTREAM_HERE { lane[i] = read<Words>(lanes_at<Store>(codes, column, v, i)); });
      if constexpr (kFour) {
        each<kSide>([&](auto i) SLIPSTREAM_HERE { w[i] = Ints(lane[i] & 0x0f0f0f0fu); });
        meet<Small>(w, x, v, c);
        each<kSide>([&](auto i) SLIPSTREAM_HERE { w[i] = Ints((lane[i] >> 4) & 0x0f0f0f0fu); });
        meet<Small>(w, x, v + 4, c);
      } else {
        each<kSide>([&](auto i) SLIPSTREAM_HERE { w[i] = Ints(lane[i]); });
        meet<Signed>(w, x, v, c);
      }
    }
    each<kCount>([&](auto r) SLIPSTREAM_HERE {
      each<kSide>([&](auto i) SLIPSTREAM_HERE {
        const int first = column + i * SLIPSTREAM_LANES;
        const Ints sum = kFour ? Small::finish(c[r][i]) : Signed::finish(c[r][i]);
        add_scaled<Store, true>(__builtin_convertvector(sum, Lanes), s, first, factors + r * layout::kRowFactors,
                                totals + r * 32 + first);
      });
    });
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
