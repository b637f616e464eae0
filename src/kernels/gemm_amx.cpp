// The product with AMX tiles: 16 rows by 16 columns by one group at a time, so the cost hardly grows up to 16 rows.
//
// Scaled kinds: four groups' products are made in tiles from codes (small integers, exact in bfloat16 and in bytes),
// then each row adds them, scaled, to its totals in order. bfloat16 weights stay in the tiles over all groups.
#include "level.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__)

#include "rounding.h"
#include "vectors_avx512.h"

namespace slipstream {
namespace {

constexpr int kPass = 32;      // rows of one pass over the weights: two chunks
constexpr int kBatch = 4;      // groups whose products are made before rows add them; divides a super-block
constexpr int kStride = kBatch * 32 + 16;  // numbers from one row of products to the next; no power of two

// Tiles 0-3: products [chunk][column half]; 4, 5: activations of the chunks; 6, 7: weights of the column halves.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// Shapes for `count` rows; `depth`: vectors of one group of weights (16 pairs or 8 quads).
void load_shapes(int count, int depth) {
  TileShapes shapes;
  int rows[2] = {count < 16 ? count : 16, count > 16 ? count - 16 : 1};
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
  SLIPSTREAM_INLINE void multiply_first() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  SLIPSTREAM_INLINE void multiply_second() {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
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
  SLIPSTREAM_INLINE void multiply_first() {
    if (Store::kFour) {
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 7);
    } else {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
    }
  }
  SLIPSTREAM_INLINE void multiply_second() {
    if (Store::kFour) {
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    } else {
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
  }
  SLIPSTREAM_INLINE __m512i load(const int32_t* c) { return _mm512_load_si512(c); }
};

struct Range {
  int begin, end;
};

// Products of one group, c[32 rows][kStride]: the first 32 columns of each.
template <class Form, bool kTwo>
SLIPSTREAM_INLINE void products(const uint8_t* wide, const uint8_t* x, size_t chunk_bytes, typename Form::Real* c) {
  constexpr int kRowBytes = Form::kDepth * 4;
  _tile_loadd(6, wide, 64);
  _tile_loadd(7, wide + Form::kWideBytes / 2, 64);
  _tile_loadd(4, x, kRowBytes);
  _tile_zero(0);
  _tile_zero(1);
  Form::multiply_first();
  _tile_stored(0, c, kStride * 4);
  _tile_stored(1, c + 16, kStride * 4);
  if (!kTwo) return;
  _tile_loadd(5, x + chunk_bytes, kRowBytes);
  _tile_zero(2);
  _tile_zero(3);
  Form::multiply_second();
  _tile_stored(2, c + 16 * kStride, kStride * 4);
  _tile_stored(3, c + 16 * kStride + 16, kStride * 4);
}

// One pass: up to 32 rows from `row` of one block.
struct Pass {
  const Product& job;
  const uint8_t* start;  // of the block
  int row, count;
  size_t place(int chunk) const { return static_cast<size_t>(row / 16 + chunk) * job.groups; }
};

// The products of up to four groups and their scales, between the tiles that make them and the rows that add them.
template <class Form>
struct Batch {
  alignas(64) typename Form::Real c[kPass * kStride];  // [rows][groups][32 columns], one vector of padding
  Scale s[kBatch];
};

template <class Form>
struct Scratch {
  alignas(64) uint8_t wide[kBatch * 2048];
  alignas(64) float totals[kPass * 32];
  Batch<Form> batch[2];
};

// Adds the products of kGroups groups, the first being `group`, to the totals of rows begin..end.
template <class Store, class Form, int kGroups>
SLIPSTREAM_INLINE void add_products(const Pass& pass, const Batch<Form>& batch, int group, Range rows, float* totals) {
#pragma GCC unroll 2
  for (int t = 0; t < 2; t++)
    for (int r = rows.begin; r < rows.end; r++) {
      const float* factors = pass.job.factors + (pass.place(r / 16) + group) * layout::kFactors + r % 16;
      __m512 total = _mm512_load_ps(totals + r * 32 + t * 16);
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; g++)
        total = add_scaled<Store::kShifted>(total, Form::load(batch.c + r * kStride + g * 32 + t * 16), batch.s[g].d[t],
                                            batch.s[g].m[t], factors + g * layout::kFactors);
      _mm512_store_ps(totals + r * 32 + t * 16, total);
    }
}

// Widens kGroups groups and reads their scales.
template <class Store, class Form, int kGroups>
SLIPSTREAM_INLINE void open_groups(const Pass& pass, int group, Batch<Form>& batch, uint8_t* scratch,
                                   const uint8_t** wide) {
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; g++) {
    const uint8_t* codes = Store::at(pass.start, group + g);
    prefetch<Store::kBytes>(codes);
    wide[g] = Form::widen(codes, scratch + g * 2048);
    Store::scales(pass.start, group + g, codes, batch.s[g]);
  }
  settle();
}

// Makes the products of the groups from `group` on in `next` while the rows add those in `last`, which are the groups
// before: tiles are slow to answer, so vector work is laid between them.
template <class Store, class Form, bool kTwo, int kGroups, bool kAdd>
SLIPSTREAM_INLINE void turn(const Pass& pass, int group, Batch<Form>& next, const Batch<Form>& last,
                            Scratch<Form>& scratch) {
  const Product& job = pass.job;
  const uint8_t* wide[kGroups];
  open_groups<Store, Form, kGroups>(pass, group, next, scratch.wide, wide);
  const uint8_t* x = job.values + (pass.place(0) + group) * Form::kChunkBytes;
  for (int g = 0; g < kGroups; g++) {
    products<Form, kTwo>(wide[g], x + g * Form::kChunkBytes, static_cast<size_t>(job.groups) * Form::kChunkBytes,
                         next.c + g * 32);
    Range rows{pass.count * g / kGroups, pass.count * (g + 1) / kGroups};
    if (kAdd) add_products<Store, Form, kBatch>(pass, last, group - kBatch, rows, scratch.totals);
  }
  settle();
}

template <class Store, class Form, bool kTwo>
void grouped_pass(const Pass& pass, int block, Scratch<Form>& scratch) {
  Batch<Form>*last = &scratch.batch[0], *next = &scratch.batch[1];
  std::memset(scratch.totals, 0, sizeof(float) * 32 * pass.count);
  int group = kBatch, groups = pass.job.groups, whole = groups / kBatch * kBatch;
  if (whole) turn<Store, Form, kTwo, kBatch, false>(pass, 0, *last, *next, scratch);
  for (; group < whole; group += kBatch) {
    turn<Store, Form, kTwo, kBatch, true>(pass, group, *next, *last, scratch);
    Batch<Form>* made = next;
    next = last;
    last = made;
  }
  if (whole) add_products<Store, Form, kBatch>(pass, *last, whole - kBatch, {0, pass.count}, scratch.totals);
  for (group = whole; group < groups; group++) {
    turn<Store, Form, kTwo, 1, false>(pass, group, *next, *last, scratch);
    add_products<Store, Form, 1>(pass, *next, group, {0, pass.count}, scratch.totals);
  }
  write_totals(pass.job, block, pass.row, pass.count, scratch.totals);
}

template <class Store, class Form>
void grouped(const Product& job) {
  Scratch<Form> scratch;
  int shaped = 0;
  for (int block = job.first; block < job.last; block++) {
    const uint8_t* start = job.codes + block * Store::block_bytes(job.groups);
    for (int row = 0; row < job.rows; row += kPass) {
      int count = job.rows - row < kPass ? job.rows - row : kPass;
      if (count != shaped) load_shapes(shaped = count, Form::kDepth);
      Pass pass{job, start, row, count};
      count > 16 ? grouped_pass<Store, Form, true>(pass, block, scratch)
                 : grouped_pass<Store, Form, false>(pass, block, scratch);
    }
  }
  _tile_release();
}

template <bool kTwo>
void plain_pass(const Pass& pass, int block, float* totals) {
  const uint8_t* codes = pass.start;
  const uint8_t* x = pass.job.values + pass.place(0) * layout::kBf16Rows;
  const uint8_t* x2 = pass.job.values + pass.place(1) * layout::kBf16Rows;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int g = 0; g < pass.job.groups; g++, codes += layout::kBf16Group, x += layout::kBf16Rows) {
    prefetch<layout::kBf16Group>(codes);
    _tile_loadd(6, codes, 64);
    _tile_loadd(7, codes + 1024, 64);
    _tile_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!kTwo) continue;
    _tile_loadd(5, x2, 64);
    x2 += layout::kBf16Rows;
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
  write_totals(pass.job, block, pass.row, pass.count, totals);
}

void plain(const Product& job) {
  alignas(64) float totals[kPass * 32];
  int shaped = 0;
  for (int block = job.first; block < job.last; block++) {
    const uint8_t* start = job.codes + static_cast<size_t>(block) * job.groups * layout::kBf16Group;
    for (int row = 0; row < job.rows; row += kPass) {
      int count = job.rows - row < kPass ? job.rows - row : kPass;
      if (count != shaped) load_shapes(shaped = count, 16);
      Pass pass{job, start, row, count};
      count > 16 ? plain_pass<true>(pass, block, totals) : plain_pass<false>(pass, block, totals);
    }
  }
  _tile_release();
}

const LevelTable kTable = {round_bf16_rows,
                           round_byte_rows,
                           plain,
                           grouped<HalfGroups, Pairs<HalfGroups>>,
                           grouped<SuperGroups, Pairs<SuperGroups>>,
                           grouped<EightGroups, Pairs<EightGroups>>,
                           grouped<HalfGroups, Quads<HalfGroups>>,
                           grouped<SuperGroups, Quads<SuperGroups>>,
                           grouped<EightGroups, Quads<EightGroups>>};

}  // namespace

const LevelTable* amx_table() { return &kTable; }

}  // namespace slipstream

#else

namespace slipstream {

const LevelTable* amx_table() { return nullptr; }

}  // namespace slipstream

#endif
