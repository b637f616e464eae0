// The product in vectors of any width, for instruction sets without dot products of bfloat16.
//
// Weights are widened to float32 in registers, a vector of columns at a time, and multiply up to four rows. Whatever the
// number of rows, a row's product with a group is two chains of additions, over even and odd steps, in a fixed order.
// 8-bit activations are exact in float32, and so is a group's product with them; levels that can multiply bytes do it
// with gemm_bytes.h instead.
// The including file sets SLIPSTREAM_LANES (floats per vector), SLIPSTREAM_MADD(a, b, c) = a * b + c and
// SLIPSTREAM_HALVES(p), a vector of half floats as float32.
#pragma once

#include <cstdint>
#include <cstring>

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

constexpr int kTogether = 4;  // rows that share widened weights
constexpr int kAhead = 4096;  // bytes that prefetching runs ahead of the codes in use

template <class To>
SLIPSTREAM_INLINE To read(const void* from) {
  To to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

SLIPSTREAM_INLINE Lanes all(float x) { return x - Lanes{}; }  // not plus: that would have to make +0 of -0

SLIPSTREAM_INLINE Lanes bytes(const uint8_t* from) {
  return __builtin_convertvector(__builtin_convertvector(read<Bytes>(from), Ints), Lanes);
}

// d and m of one vector of columns.
struct Scale {
  Lanes d, m;
};

// Storages: where a group lies, its scales, and the steps in which a 32-bit lane gives up its inputs.
struct StoreBf16 {
  static constexpr int kBytes = layout::kBf16Group, kCodes = layout::kBf16Codes, kSteps = 2;
  static constexpr bool kScaled = false, kShifted = false;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * kBytes; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * kBytes; }
  SLIPSTREAM_INLINE Scale scale(const uint8_t*, int, const uint8_t*, int) { return {Lanes{}, Lanes{}}; }
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
  SLIPSTREAM_INLINE Scale scale(const uint8_t*, int, const uint8_t* codes, int column) {
    const uint8_t* d = codes + layout::kFourCodes + column * 2;
    return {SLIPSTREAM_HALVES(d), SLIPSTREAM_HALVES(d + 64)};
  }
};

struct StoreSuper : StoreFour {
  static constexpr int kBytes = layout::kSuperGroup;
  static size_t block_bytes(int groups) { return layout::super_offset(groups) - layout::kHeader; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + layout::super_offset(group); }
  SLIPSTREAM_INLINE Scale scale(const uint8_t* block, int group, const uint8_t* codes, int column) {
    const uint8_t* header = block + layout::super_offset(group & ~7) - layout::kHeader + column * 2;
    const uint8_t* factors = codes + layout::kFourCodes + column;
    return {SLIPSTREAM_HALVES(header) * bytes(factors), SLIPSTREAM_HALVES(header + 64) * bytes(factors + 32)};
  }
};

struct StoreEight {
  static constexpr int kBytes = layout::kEightGroup, kCodes = layout::kEightCodes, kSteps = 4;
  static constexpr bool kScaled = true, kShifted = false;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * kBytes; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * kBytes; }
  SLIPSTREAM_INLINE Scale scale(const uint8_t*, int, const uint8_t* codes, int column) {
    return {SLIPSTREAM_HALVES(codes + layout::kEightCodes + column * 2), Lanes{}};
  }
  static constexpr int input(int vector, int step) { return 4 * vector + layout::kQuad[step]; }
  SLIPSTREAM_INLINE Lanes widen(Words lane, int step) {
    return __builtin_convertvector(Ints(lane << (24 - 8 * step)) >> 24, Lanes);
  }
};

// total += the product of a row with a group, for one vector of columns.
template <class Store, bool kBytes>
SLIPSTREAM_INLINE void add_scaled(Lanes product, const Scale& s, const float* factors, float* total) {
  Lanes sum = read<Lanes>(total);
  if (kBytes)
    sum = SLIPSTREAM_MADD(product * s.d, all(factors[0]), sum);
  else
    sum = Store::kScaled ? SLIPSTREAM_MADD(product, s.d, sum) : sum + product;
  if (Store::kShifted) sum = SLIPSTREAM_MADD(s.m, all(factors[1]), sum);
  std::memcpy(total, &sum, sizeof sum);
}

// How a group meets rows: activations are widened to float32.
template <class Store, bool kBytes>
struct FloatForm {
  static constexpr int kRowBytes = kBytes ? 32 : 64;
  alignas(64) float x[16][32];

  SLIPSTREAM_INLINE void widen_rows(FloatForm& form, const uint8_t* values, int count) {
    for (int r = 0; r < count; r++, values += kRowBytes)
      for (int i = 0; i < 32; i += SLIPSTREAM_LANES) {
        const Lanes wide = kBytes ? __builtin_convertvector(read<Codes>(values + i), Lanes)
                                  : Lanes(__builtin_convertvector(read<Halves>(values + 2 * i), Words) << 16);
        std::memcpy(&form.x[r][i], &wide, sizeof wide);
      }
  }
  // Where input k of a group is kept: 8-bit codes lie in the order of layout.h.
  static constexpr int place(int k) { return kBytes ? (k & ~3) + layout::kQuad[k & 3] : k; }

  template <int kCount>
  SLIPSTREAM_INLINE void add(const FloatForm& form, int row, const uint8_t* lanes, const Scale& s, const float* factors,
                             float* totals) {
    Lanes c[kCount][2] = {};
#pragma GCC unroll 16
    for (int v = 0; v < Store::kCodes / 128; v++) {
      const Words lane = read<Words>(lanes + v * 64);
#pragma GCC unroll 8
      for (int step = 0; step < Store::kSteps; step++) {
        const Lanes w = Store::widen(lane, step);
#pragma GCC unroll 4
        for (int r = 0; r < kCount; r++)
          c[r][step & 1] = SLIPSTREAM_MADD(w, all(form.x[row + r][place(Store::input(v, step))]), c[r][step & 1]);
      }
    }
    for (int r = 0; r < kCount; r++)
      add_scaled<Store, kBytes>(c[r][0] + c[r][1], s, factors + r * layout::kRowFactors, totals + r * 32);
  }
};

SLIPSTREAM_INLINE void write_rows(const Product& job, int block, int row, int count, const float* totals) {
  int column = block * 32, width = job.out - column < 32 ? job.out - column : 32;
  for (int r = 0; r < count; r++)
    for (int c = 0; c < width; c++)
      job.y[static_cast<size_t>(row + r) * job.stride + column + c] =
          totals[r * 32 + c] + (job.bias ? job.bias[column + c] : 0.0f);
}

// One group times up to sixteen rows.
template <class Store, class Form>
SLIPSTREAM_INLINE void add_group(const Form& form, const uint8_t* start, int group, int count, const float* factors,
                                 float* totals) {
  const uint8_t* codes = Store::at(start, group);
  for (int i = 0; i < Store::kBytes; i += 64) __builtin_prefetch(codes + kAhead + i);
  for (int column = 0; column < 32; column += SLIPSTREAM_LANES) {
    const uint8_t* lanes = codes + column / 16 * (Store::kCodes / 2) + column % 16 * 4;
    const Scale s = Store::scale(start, group, codes, column);
    int r = 0;
    for (; r + kTogether <= count; r += kTogether)
      Form::template add<kTogether>(form, r, lanes, s, factors + r * layout::kRowFactors, totals + r * 32 + column);
    const float* left = factors + r * layout::kRowFactors;
    float* sums = totals + r * 32 + column;
    switch (count - r) {  // no loop: a lone row wants its weights in registers, not widened beforehand
      case 3: Form::template add<3>(form, r, lanes, s, left, sums); break;
      case 2: Form::template add<2>(form, r, lanes, s, left, sums); break;
      case 1: Form::template add<1>(form, r, lanes, s, left, sums);
    }
  }
}

template <class Store, class Form>
void product(const Product& job) {
  Form form;
  alignas(64) float totals[16 * 32];
  for (int block = job.first; block < job.last; block++) {
    const uint8_t* start = job.codes + block * Store::block_bytes(job.groups);
    for (int row = 0; row < job.rows; row += 16) {
      int count = job.rows - row < 16 ? job.rows - row : 16;
      std::memset(totals, 0, sizeof totals);
      for (int group = 0; group < job.groups; group++) {
        const size_t place = static_cast<size_t>(row / 16) * job.groups + group;
        Form::widen_rows(form, job.values + place * 16 * Form::kRowBytes, count);
        add_group<Store>(form, start, group, count, job.factors + place * layout::kFactors, totals);
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
