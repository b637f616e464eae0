// The product in vectors of any width, for instruction sets without dot products of bfloat16.
//
// Weights are widened to float32 in registers, vectors of columns side by side, and multiply up to six rows. Whatever
// the number of rows, a row's product with a group is two chains of additions, over even and odd steps, in a fixed order.
// 8-bit activations are exact in float32, and so is a group's product with them; levels that can multiply bytes do it
// with gemm_bytes.h instead.
// The including file sets SLIPSTREAM_LANES (floats per vector), SLIPSTREAM_MADD(a, b, c) = a * b + c, and what widens a
// vector at p: SLIPSTREAM_HALVES(p) of half floats and SLIPSTREAM_BYTES(p) of unsigned bytes to float32,
// SLIPSTREAM_WORDS(p) of 16-bit numbers to 32 bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "layout.h"
#include "level.h"
#include "rounding.h"

namespace slipstream {
namespace {

typedef float Lanes __attribute__((vector_size(SLIPSTREAM_LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(SLIPSTREAM_LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(SLIPSTREAM_LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(SLIPSTREAM_LANES * 2)));
typedef uint8_t Bytes __attribute__((vector_size(SLIPSTREAM_LANES)));
typedef int8_t Codes __attribute__((vector_size(SLIPSTREAM_LANES)));

constexpr int kTogether = 6;  // rows that share widened weights, at most

// Calls act(0), act(1), .. with constants, for what has to stay in registers: a loop's array would lie in memory.
template <int kIndex>
struct Constant {
  constexpr operator int() const { return kIndex; }
};
template <int... kIndex, class Act>
SLIPSTREAM_INLINE void each_of(std::integer_sequence<int, kIndex...>, const Act& act) {
  (act(Constant<kIndex>{}), ...);
}
template <int kCount, class Act>
SLIPSTREAM_INLINE void each(const Act& act) {
  each_of(std::make_integer_sequence<int, kCount>{}, act);
}
#define SLIPSTREAM_HERE __attribute__((always_inline))

// Vectors of columns side by side, which share what is read of a row. A lone row takes more of them: its sums wait for
// each other less.
constexpr int side(int rows) { return rows == 1 ? 4 : 2; }

constexpr int kAhead = 4096;  // bytes that prefetching runs ahead of the codes in use

template <class To>
SLIPSTREAM_INLINE To read(const void* from) {
  To to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

SLIPSTREAM_INLINE Lanes all(float x) { return x - Lanes{}; }  // not plus: that would have to make +0 of -0

// d and m of the columns of a group, and what they are multiples of.
struct Scale {
  alignas(64) float d[32], m[32], super_d[32], super_m[32];
};

SLIPSTREAM_INLINE void put(float* to, Lanes x) { std::memcpy(to, &x, sizeof x); }

// Storages: where a group lies, its scales, and the steps in which a 32-bit lane gives up its inputs.
struct StoreBf16 {
  static constexpr int kBytes = layout::kBf16Group, kCodes = layout::kBf16Codes, kSteps = 2;
  static constexpr bool kScaled = false, kShifted = false;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * kBytes; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * kBytes; }
  SLIPSTREAM_INLINE void scale(int, const uint8_t*, Scale&) {}
  static constexpr int input(int vector, int step) { return 2 * vector + step; }
  SLIPSTREAM_INLINE Lanes widen(Words lane, int step) { return Lanes(step ? lane & 0xffff0000u : lane << 16); }
};

struct StoreFour {
  static constexpr int kCodes = layout::kFourCodes, kSteps = 8;
  static constexpr bool kScaled = true, kShifted = true;
  static constexpr int input(int vector, int step) { return 4 * (vector + 4 * (step & 1)) + layout::kQuad[step >> 1]; }
  SLIPSTREAM_INLINE Lanes widen(Words lane, int step) {
    return __builtin_convertvector(Ints(step < 7 ? (lane >> (4 * step)) & 15 : lane >> 28), Lanes);
  }
};

struct StoreHalf : StoreFour {
  static constexpr int kBytes = layout::kHalfGroup;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * kBytes; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * kBytes; }
  SLIPSTREAM_INLINE void scale(int, const uint8_t* codes, Scale& s) {
    for (int c = 0; c < 32; c += SLIPSTREAM_LANES) {
      const uint8_t* d = codes + kCodes + c * 2;
      put(s.d + c, SLIPSTREAM_HALVES(d));
      put(s.m + c, SLIPSTREAM_HALVES(d + 64));
    }
  }
};

struct StoreSuper : StoreFour {
  static constexpr int kBytes = layout::kSuperGroup;
  static size_t block_bytes(int groups) { return layout::super_offset(groups) - layout::kHeader; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + layout::super_offset(group); }
  SLIPSTREAM_INLINE void scale(int group, const uint8_t* codes, Scale& s) {
    if (group % layout::kSuperGroups == 0)
      for (int c = 0; c < 32; c += SLIPSTREAM_LANES) {
        put(s.super_d + c, SLIPSTREAM_HALVES(codes - layout::kHeader + c * 2));
        put(s.super_m + c, SLIPSTREAM_HALVES(codes - layout::kHeader + 64 + c * 2));
      }
    for (int c = 0; c < 32; c += SLIPSTREAM_LANES) {
      put(s.d + c, read<Lanes>(s.super_d + c) * SLIPSTREAM_BYTES(codes + kCodes + c));
      put(s.m + c, read<Lanes>(s.super_m + c) * SLIPSTREAM_BYTES(codes + kCodes + 32 + c));
    }
  }
};

struct StoreEight {
  static constexpr int kBytes = layout::kEightGroup, kCodes = layout::kEightCodes, kSteps = 4;
  static constexpr bool kScaled = true, kShifted = false;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * kBytes; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * kBytes; }
  SLIPSTREAM_INLINE void scale(int, const uint8_t* codes, Scale& s) {
    for (int c = 0; c < 32; c += SLIPSTREAM_LANES) put(s.d + c, SLIPSTREAM_HALVES(codes + kCodes + c * 2));
  }
  static constexpr int input(int vector, int step) { return 4 * vector + layout::kQuad[step]; }
  SLIPSTREAM_INLINE Lanes widen(Words lane, int step) {
    return __builtin_convertvector(Ints(lane << (24 - 8 * step)) >> 24, Lanes);
  }
};

// total += the product of a row with a group, for the vector of columns from `column` on.
template <class Store, bool kBytes>
SLIPSTREAM_INLINE void add_scaled(Lanes product, const Scale& s, int column, const float* factors, float* total) {
  Lanes sum = read<Lanes>(total);
  const Lanes d = Store::kScaled ? read<Lanes>(s.d + column) : Lanes{};
  if (kBytes)
    sum = SLIPSTREAM_MADD(product * d, all(factors[0]), sum);
  else
    sum = Store::kScaled ? SLIPSTREAM_MADD(product, d, sum) : sum + product;
  if (Store::kShifted) sum = SLIPSTREAM_MADD(read<Lanes>(s.m + column), all(factors[1]), sum);
  put(total, sum);
}

// Vector `index` of the codes of vector i of columns, from `column` on.
template <class Store>
SLIPSTREAM_INLINE const uint8_t* lanes_at(const uint8_t* codes, int column, int index, int i) {
  column += i * SLIPSTREAM_LANES;
  return codes + column / 16 * (Store::kCodes / 2) + column % 16 * 4 + index * layout::kVector;
}

// How a group meets rows: activations are widened to float32.
template <class Store, bool kBytes>
struct FloatForm {
  static constexpr int kRowBytes = kBytes ? 32 : 64;
  alignas(64) float x[16][32];

  SLIPSTREAM_INLINE void widen_rows(FloatForm& form, const uint8_t* values, int count) {
    for (int r = 0; r < count; r++, values += kRowBytes)
      for (int i = 0; i < 32; i += SLIPSTREAM_LANES)
        put(&form.x[r][i], kBytes ? __builtin_convertvector(read<Codes>(values + i), Lanes)
                                  : Lanes(SLIPSTREAM_WORDS(values + 2 * i) << 16));
  }
  // Where input k of a group is kept: 8-bit codes lie in the order of layout.h.
  static constexpr int place(int k) { return kBytes ? (k & ~3) + layout::kQuad[k & 3] : k; }

  // The steps of both chains, or of the even or the odd one.
  template <int kFirst, int kStride, int kCount, int kSide>
  SLIPSTREAM_INLINE void steps(const FloatForm& form, int row, const uint8_t* codes, int column, Lanes (&c)[2][kCount][kSide]) {
#pragma GCC unroll 1
    for (int v = 0; v < Store::kCodes / 128; v++) {
      each<Store::kSteps / kStride>([&](auto turn) SLIPSTREAM_HERE {
        constexpr int step = kFirst + turn * kStride;
        Lanes w[kSide];
        each<kSide>([&](auto i) SLIPSTREAM_HERE { w[i] = Store::widen(read<Words>(lanes_at<Store>(codes, column, v, i)), step); });
        each<kCount>([&](auto r) SLIPSTREAM_HERE {
          const Lanes x = all(form.x[row + r][place(Store::input(v, step))]);
          each<kSide>([&](auto i) SLIPSTREAM_HERE { c[step & 1][r][i] = SLIPSTREAM_MADD(w[i], x, c[step & 1][r][i]); });
        });
      });
    }
  }

  template <int kCount>
  SLIPSTREAM_INLINE void add(const FloatForm& form, int row, const uint8_t* codes, int column, const Scale& s,
                             const float* factors, float* totals) {
    constexpr int kSide = side(kCount);
    Lanes c[2][kCount][kSide] = {};
    if constexpr (kCount < 4) {
      steps<0, 1>(form, row, codes, column, c);
    } else {  // both chains at once would not fit into sixteen registers
      steps<0, 2>(form, row, codes, column, c);
      steps<1, 2>(form, row, codes, column, c);
    }
    each<kCount>([&](auto r) SLIPSTREAM_HERE {
      each<kSide>([&](auto i) SLIPSTREAM_HERE {
        const int first = column + i * SLIPSTREAM_LANES;
        add_scaled<Store, kBytes>(c[0][r][i] + c[1][r][i], s, first, factors + r * layout::kRowFactors, totals + r * 32 + first);
      });
    });
  }
};

SLIPSTREAM_INLINE void write_rows(const Product& job, int block, int row, int count, const float* totals) {
  int column = block * 32, width = job.out - column < 32 ? job.out - column : 32;
  for (int r = 0; r < count; r++)
    for (int c = 0; c < width; c++)
      job.y[static_cast<size_t>(row + r) * job.stride + column + c] =
          totals[r * 32 + c] + (job.bias ? job.bias[column + c] : 0.0f);
}

// One group times kCount rows.
template <class Form, int kCount>
SLIPSTREAM_INLINE void add_rows(const Form& form, int row, const uint8_t* codes, const Scale& s, const float* factors,
                                float* totals) {
  for (int column = 0; column < 32; column += side(kCount) * SLIPSTREAM_LANES)
    Form::template add<kCount>(form, row, codes, column, s, factors + row * layout::kRowFactors, totals + row * 32);
}

// One group times up to sixteen rows.
template <class Store, class Form>
SLIPSTREAM_INLINE void add_group(const Form& form, const uint8_t* start, int group, int count, const float* factors,
                                 Scale& s, float* totals) {
  const uint8_t* codes = Store::at(start, group);
  for (int i = 0; i < Store::kBytes; i += 64) __builtin_prefetch(codes + kAhead + i);
  Store::scale(group, codes, s);
  int row = 0;
  for (; row + kTogether <= count; row += kTogether) add_rows<Form, kTogether>(form, row, codes, s, factors, totals);
  switch (count - row) {
    case 5: add_rows<Form, 5>(form, row, codes, s, factors, totals); break;
    case 4: add_rows<Form, 4>(form, row, codes, s, factors, totals); break;
    case 3: add_rows<Form, 3>(form, row, codes, s, factors, totals); break;
    case 2: add_rows<Form, 2>(form, row, codes, s, factors, totals); break;
    case 1: add_rows<Form, 1>(form, row, codes, s, factors, totals);
  }
}

template <class Store, class Form>
void product(const Product& job) {
  Form form;
  Scale s;
  alignas(64) float totals[16 * 32];
  for (int block = job.first; block < job.last; block++) {
    const uint8_t* start = job.codes + block * Store::block_bytes(job.groups);
    for (int row = 0; row < job.rows; row += 16) {
      int count = job.rows - row < 16 ? job.rows - row : 16;
      std::memset(totals, 0, sizeof totals);
      for (int group = 0; group < job.groups; group++) {
        const size_t place = static_cast<size_t>(row / 16) * job.groups + group;
        Form::widen_rows(form, job.values + place * 16 * Form::kRowBytes, count);
        add_group<Store>(form, start, group, count, job.factors + place * layout::kFactors, s, totals);
      }
      write_rows(job, block, row, count, totals);
    }
  }
}

template <class Store, bool kBytes>
constexpr auto kFloats = product<Store, FloatForm<Store, kBytes>>;

constexpr LevelTable kFloatTable = {round_bf16_rows,           round_byte_rows,
                                    kFloats<StoreBf16, false>, kFloats<StoreHalf, false>,
                                    kFloats<StoreSuper, false>, kFloats<StoreEight, false>,
                                    kFloats<StoreHalf, true>,  kFloats<StoreSuper, true>,
                                    kFloats<StoreEight, true>};

}  // namespace
}  // namespace slipstream
