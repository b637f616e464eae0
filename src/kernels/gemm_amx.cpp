// The product with AMX tiles: 16 rows by 16 columns by one group at a time, so the cost hardly grows up to 16 rows.
//
// Scaled kinds: products of a group are made in tiles from codes (small integers, exact in bfloat16 and in bytes), then
// each row adds them, scaled, to its totals, group after group. Two products are made at a time: for many rows, of two
// blocks of outputs with the same activations; for few, of two groups of one block, which is read in a straight line. No
// row can tell the difference. What lies between the steps is kept small: threads that share a core share its
// first-level cache. bfloat16 weights stay in the tiles over all groups; two chunks of rows share a load of them.
#include "level.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__)

#include "rounding_avx512.h"
#include "rows_avx512.h"

namespace slipstream {
namespace {

constexpr int kFewRows = 2;    // rows that dot products of bytes serve faster than tiles
constexpr int kManyRows = 8;   // above, two blocks at a time
constexpr int kWide = 64;      // numbers of a row in two products

// Tiles 0-3: column halves of two products (scaled) or of two chunks of rows (bfloat16 weights);
// 4, 5: activations of the chunks; 6, 7: weights of the column halves.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// Shapes for `count` rows; `depth`: vectors of one group of weights (16 pairs or 8 quads). Up to 16 rows all products
// have as many; above, the second pair of products is for the second chunk.
void load_shapes(int count, int depth) {
  TileShapes shapes;
  int rows[2] = {count < 16 ? count : 16, count > 16 ? count - 16 : count};
  for (int t = 0; t < 8; t++) shapes.bytes[t] = 64;
  for (int chunk = 0; chunk < 2; chunk++) {
    shapes.rows[2 * chunk] = shapes.rows[2 * chunk + 1] = shapes.rows[4 + chunk] = static_cast<uint8_t>(rows[chunk]);
    shapes.bytes[4 + chunk] = static_cast<uint16_t>(depth * 4);
    shapes.rows[6 + chunk] = static_cast<uint8_t>(depth);
  }
  // the intrinsic does not say that it reads the whole struct, and compilers drop the stores above
  asm volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
}

// The tile intrinsics do not tell the compiler that they read and write memory.
SLIPSTREAM_INLINE void settle() { asm volatile("" : : : "memory"); }

template <int kIndex>
struct Which {};

// Weights in groups with scales; activations in bfloat16.
template <class Store>
struct Pairs {
  using Real = float;
  static constexpr int kDepth = 16, kChunkBytes = layout::kBf16Rows, kWideBytes = 2048;
  SLIPSTREAM_INLINE const uint8_t* widen(const uint8_t* codes, uint8_t* wide) {
    for (int t = 0; t < 2; t++)
      Store::kFour ? widen_four(codes + t * 256, wide + t * 1024) : widen_eight(codes + t * 512, wide + t * 1024);
    return wide;
  }
  SLIPSTREAM_INLINE void multiply(Which<0>) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  SLIPSTREAM_INLINE void multiply(Which<1>) {
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 4, 7);
  }
  SLIPSTREAM_INLINE __m512 load(const float* c) { return _mm512_load_ps(c); }
};

// The same with 8-bit activations.
template <class Store>
struct Quads {
  using Real = int32_t;
  static constexpr int kDepth = 8, kChunkBytes = layout::kByteRows, kWideBytes = 1024;
  SLIPSTREAM_INLINE const uint8_t* widen(const uint8_t* codes, uint8_t* wide) {
    if (!Store::kFour) return codes;
    for (int t = 0; t < 2; t++) widen_bytes(codes + t * 256, wide + t * 512);
    return wide;
  }
  SLIPSTREAM_INLINE void multiply(Which<0>) {
    if (Store::kFour) {
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 7);
    } else {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
    }
  }
  SLIPSTREAM_INLINE void multiply(Which<1>) {
    if (Store::kFour) {
      _tile_dpbsud(2, 4, 6);
      _tile_dpbsud(3, 4, 7);
    } else {
      _tile_dpbssd(2, 4, 6);
      _tile_dpbssd(3, 4, 7);
    }
  }
  SLIPSTREAM_INLINE __m512i load(const int32_t* c) { return _mm512_load_si512(c); }
};

// One of the two products: a group of a block times the activations in tile 4, into c[16 rows][kWide].
template <class Form>
SLIPSTREAM_INLINE void products(Which<0>, const uint8_t* wide, typename Form::Real* c) {
  _tile_loadd(6, wide, 64);
  _tile_loadd(7, wide + Form::kWideBytes / 2, 64);
  _tile_zero(0);
  _tile_zero(1);
  Form::multiply(Which<0>());
  _tile_stored(0, c, kWide * 4);
  _tile_stored(1, c + 16, kWide * 4);
}

template <class Form>
SLIPSTREAM_INLINE void products(Which<1>, const uint8_t* wide, typename Form::Real* c) {
  _tile_loadd(6, wide, 64);
  _tile_loadd(7, wide + Form::kWideBytes / 2, 64);
  _tile_zero(2);
  _tile_zero(3);
  Form::multiply(Which<1>());
  _tile_stored(2, c, kWide * 4);
  _tile_stored(3, c + 16, kWide * 4);
}

// One pass: up to 16 rows from `row` of one or two blocks, which start at `codes`, `bytes` apart.
struct Pass {
  const Product& job;
  const uint8_t* codes;
  size_t bytes;
  int row, count;
  size_t place(int group) const { return static_cast<size_t>(row / 16) * job.groups + group; }
};

template <class Form>
struct Scratch {
  alignas(64) uint8_t wide[2][Form::kWideBytes];  // of the two products, as the next two
  alignas(64) typename Form::Real c[16 * kWide];
  alignas(64) float totals[16 * kWide];  // [rows][blocks][32 columns]
};

// Adds the two products, or one, to the rows' totals.
template <class Store, class Form, int kBlocks, int kGroups>
SLIPSTREAM_INLINE void add_products(const Pass& pass, int group, const Scale* s, Scratch<Form>& scratch) {
  const float* factors = pass.job.factors + pass.place(group) * layout::kFactors;
  for (int r = 0; r < pass.count; r++, factors++) {
#pragma GCC unroll 4
    for (int half = 0; half < 2 * kBlocks; half++) {
      float* place = scratch.totals + r * kWide + half * 16;
      const auto* c = scratch.c + r * kWide + half * 16;
      __m512 total = _mm512_load_ps(place);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; g++) {
        const Scale& scale = s[g + half / 2];
        total = add_scaled<Store::kShifted>(total, Form::load(c + g * 32), scale.d[half % 2], scale.m[half % 2],
                                            factors + g * layout::kFactors);
      }
      _mm512_store_ps(place, total);
    }
  }
}

// Two products, of kBlocks blocks and kGroups groups (1 and 2 or 2 and 1), or one.
template <class Store, class Form, int kBlocks, int kGroups>
SLIPSTREAM_INLINE void add_groups(const Pass& pass, int group, Scratch<Form>& scratch) {
  constexpr int kCount = kBlocks * kGroups;
  Scale s[kCount];
  const uint8_t* wide[kCount];
#pragma GCC unroll 2
  for (int i = 0; i < kCount; i++) {
    const uint8_t* start = pass.codes + (kBlocks == 2 ? i : 0) * pass.bytes;
    const int own = group + (kGroups == 2 ? i : 0);
    const uint8_t* codes = Store::at(start, own);
    prefetch<Store::kBytes>(codes);
    wide[i] = Form::widen(codes, scratch.wide[i]);
    Store::scales(start, own, codes, s[i]);
  }
  const uint8_t* x = pass.job.values + pass.place(group) * Form::kChunkBytes;
  settle();
  _tile_loadd(4, x, Form::kDepth * 4);
  products<Form>(Which<0>(), wide[0], scratch.c);
  if (kGroups == 2) _tile_loadd(4, x + Form::kChunkBytes, Form::kDepth * 4);
  if (kCount == 2) products<Form>(Which<1>(), wide[kCount - 1], scratch.c + 32);
  settle();
  add_products<Store, Form, kBlocks, kGroups>(pass, group, s, scratch);
}

template <class Store, class Form, int kBlocks, int kGroups>
void add_blocks(const Pass& pass, int block, Scratch<Form>& scratch) {
  std::memset(scratch.totals, 0, sizeof(float) * kWide * pass.count);
  int group = 0;
  for (; group + kGroups <= pass.job.groups; group += kGroups)
    add_groups<Store, Form, kBlocks, kGroups>(pass, group, scratch);
  if (group < pass.job.groups) add_groups<Store, Form, kBlocks, 1>(pass, group, scratch);
  for (int b = 0; b < kBlocks; b++)
    write_totals(pass.job, block + b, pass.row, pass.count, scratch.totals + b * 32, kWide);
}

template <class Store, class Form>
void grouped(const Product& job) {
  Scratch<Form> scratch;
  const size_t bytes = Store::block_bytes(job.groups);
  const int step = job.rows > kManyRows ? 2 : 1;
  int shaped = 0;
  for (int block = job.first; block < job.last; block += step)
    for (int row = 0; row < job.rows; row += 16) {
      int count = job.rows - row < 16 ? job.rows - row : 16;
      if (count != shaped) load_shapes(shaped = count, Form::kDepth);
      Pass pass{job, job.codes + block * bytes, bytes, row, count};
      step == 2 && block + 1 < job.last ? add_blocks<Store, Form, 2, 1>(pass, block, scratch)
                                        : add_blocks<Store, Form, 1, 2>(pass, block, scratch);
    }
  _tile_release();
}

// Products of 8-bit numbers have no rounding, and the rest is the same arithmetic: for a row or two, dot products give
// the same bits sooner.
template <class Store>
void grouped_bytes(const Product& job) {
  job.rows <= kFewRows ? by_rows<Store, QuadRows<Store>>(job) : grouped<Store, Quads<Store>>(job);
}

// bfloat16 weights: up to 32 rows, two chunks, of one block.
template <bool kTwo>
void plain_rows(const Product& job, int block, int row, int count) {
  alignas(64) float totals[32 * 32];
  const size_t chunk = static_cast<size_t>(job.groups) * layout::kBf16Rows;
  const uint8_t* codes = job.codes + static_cast<size_t>(block) * job.groups * layout::kBf16Group;
  const uint8_t* x = job.values + row / 16 * chunk;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int g = 0; g < job.groups; g++, codes += layout::kBf16Group, x += layout::kBf16Rows) {
    prefetch<layout::kBf16Group>(codes);
    _tile_loadd(6, codes, 64);
    _tile_loadd(7, codes + 1024, 64);
    _tile_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!kTwo) continue;
    _tile_loadd(5, x + chunk, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, totals, 128);
  _tile_stored(1, totals + 16, 128);
  if (kTwo) {
    _tile_stored(2, totals + 512, 128);
    _tile_stored(3, totals + 528, 128);
  }
  settle();
  write_totals(job, block, row, count, totals, 32);
}

void plain(const Product& job) {
  int shaped = 0;
  for (int block = job.first; block < job.last; block++)
    for (int row = 0; row < job.rows; row += 32) {
      int count = job.rows - row < 32 ? job.rows - row : 32;
      if (count != shaped) load_shapes(shaped = count, 16);
      count > 16 ? plain_rows<true>(job, block, row, count) : plain_rows<false>(job, block, row, count);
    }
  _tile_release();
}

const LevelTable kTable = {round_bf16_rows,
                           round_byte_rows,
                           plain,
                           grouped<HalfGroups, Pairs<HalfGroups>>,
                           grouped<SuperGroups, Pairs<SuperGroups>>,
                           grouped<EightGroups<true>, Pairs<EightGroups<true>>>,
                           grouped_bytes<HalfGroups>,
                           grouped_bytes<SuperGroups>,
                           grouped_bytes<EightGroups<false>>};

}  // namespace

const LevelTable* amx_table() { return &kTable; }

}  // namespace slipstream

#else

namespace slipstream {

const LevelTable* amx_table() { return nullptr; }

}  // namespace slipstream

#endif
