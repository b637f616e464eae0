// The product with AMX tiles: up to 16 rows by 16 columns by one group at a time, so the cost hardly grows up to 16 rows.
//
// Scaled kinds: products of groups are made in tiles from codes (small integers, exact in bfloat16 and in bytes), then each
// row adds them, scaled, to its totals, group after group. Tiles are slow to answer, so while groups are multiplied
// the next are widened and the last added. Where registers hold the totals of both tiles of columns of a block, they go
// side by side: they share a load of the activations, and one is added while the other is multiplied. Else they go in turn.
// The memory between the steps is one small piece used again and again: stores on their way to the cache hold up loads
// whose address has the same low bits. bfloat16 weights stay in the tiles over all groups; two chunks of rows share a
// load of them.
#include "level.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__)

#include "quads_avx512.h"
#include "rounding_avx512.h"
#include "tiles_amx.h"

namespace slipstream {
namespace {

// Rows that dot products of bytes serve faster than tiles: where strips are short, tiles start and end too often, and small
// matrices come from a cache, for which tiles need not wait as they do for memory.
constexpr int kShortStrip = 32;      // groups
constexpr int kSmallMatrix = 1 << 16;  // outputs times groups
SLIPSTREAM_INLINE int few_rows(const Product& job) {
  return job.groups < kShortStrip || job.groups * static_cast<int64_t>(job.out) < kSmallMatrix ? 7 : 3;
}

// Tiles 0-3: sums, 4 and 5: activations, 6 and 7: weights. Two column halves (6, 7) by two chunks of rows (4, 5) of
// bfloat16 weights; scaled kinds take the first chunk only.
//
// Shapes for `count` rows; `depth`: vectors of one group of weights (16 pairs or 8 quads). Up to 16 rows all products
// have as many; above, the second pair of products is for the second chunk.
void load_shapes(int count, int depth) {
  TileShapes shapes;
  int rows[2] = {count < 16 ? count : 16, count > 16 ? count - 16 : count};
  for (int chunk = 0; chunk < 2; chunk++) {
    shapes.rows[2 * chunk] = shapes.rows[2 * chunk + 1] = shapes.rows[4 + chunk] = static_cast<uint8_t>(rows[chunk]);
    shapes.bytes[4 + chunk] = static_cast<uint16_t>(depth * 4);
    shapes.rows[6 + chunk] = static_cast<uint8_t>(depth);
  }
  load_shapes(shapes);
}

// Weights in groups with scales; activations in bfloat16.
template <class Store>
struct Pairs {
  using Real = float;
  static constexpr int kDepth = 16, kChunkBytes = layout::kBf16Rows;
  static constexpr int kBothRows = Store::kFour ? 10 : 0;  // rows up to which both tiles go side by side
  SLIPSTREAM_INLINE void widen(const uint8_t* codes, uint8_t* wide) {
    Store::kFour ? widen_four(codes, wide) : widen_eight(codes, wide);
  }
  SLIPSTREAM_INLINE void first() { _tile_dpbf16ps(0, 4, 6); }
  SLIPSTREAM_INLINE void second() { _tile_dpbf16ps(1, 4, 7); }
  SLIPSTREAM_INLINE __m512 load(const float* c) { return _mm512_load_ps(c); }
};

// The same with 8-bit activations.
template <class Store>
struct Quads {
  using Real = int32_t;
  static constexpr int kDepth = 8, kChunkBytes = layout::kByteRows;
  static constexpr int kBothRows = Store::kFour ? 10 : 16;
  SLIPSTREAM_INLINE void widen(const uint8_t* codes, uint8_t* wide) {
    if (Store::kFour) widen_bytes(codes, wide);
  }
  SLIPSTREAM_INLINE void first() {
    if (Store::kFour)
      _tile_dpbsud(0, 4, 6);
    else
      _tile_dpbssd(0, 4, 6);
  }
  SLIPSTREAM_INLINE void second() {
    if (Store::kFour)
      _tile_dpbsud(1, 4, 7);
    else
      _tile_dpbssd(1, 4, 7);
  }
  SLIPSTREAM_INLINE __m512i load(const int32_t* c) { return _mm512_load_si512(c); }
};

// One tile of columns of a strip: what it reads, and the memory between its steps.
template <class Store, class Form>
struct Work {
  static constexpr int kWide = Form::kDepth * 64;                                  // bytes of a widened group
  static constexpr bool kAsIs = !Store::kFour && Form::kDepth == 8;                // bytes need no widening
  static constexpr int kLines = ((Store::kBytes + 63) / 64 + 1) / 2;               // to fetch with each group
  alignas(64) uint8_t wide[kWide] = {};
  alignas(64) typename Form::Real c[256] = {};  // products [16 rows][16 columns]

  const Strip* strip;
  const uint8_t* next;             // codes to fetch
  const uint8_t* ready = nullptr;  // codes that are widened
  int tile;

  const uint8_t* codes(int group) const { return of_tile(Store::at(strip->block, group)); }
  // the codes after those of a group: at a strip's end, those of the next one
  const uint8_t* after(int group) const { return group + 1 < strip->last ? codes(group + 1) : of_tile(strip->next); }
  const uint8_t* of_tile(const uint8_t* group) const { return group + tile * Store::kTileCodes; }
  const uint8_t* weights(int group) const { return kAsIs ? codes(group) : wide; }
  void start(const Strip& now, int which) {
    strip = &now;
    tile = which;
    next = now.next + which * (now.last - now.first) * kLines * 64;
  }
};

template <class Store, class Form>
SLIPSTREAM_INLINE void widen_group(Work<Store, Form>& work, const uint8_t* codes) {
  if (work.kAsIs) return;
  Form::widen(codes, work.wide);
  work.ready = codes;
  settle();
}

// Starts the product of a group; x: its activations.
template <int kTiles, class Store, class Form>
SLIPSTREAM_INLINE void multiply_group(Work<Store, Form>* work, int group, const uint8_t* x) {
  for (int t = 0; t < kTiles; t++) fetch<Work<Store, Form>::kLines>(work[t].next);
  _tile_loadd(4, x, Form::kDepth * 4);
  _tile_loadd(6, work[0].weights(group), 64);
  _tile_zero(0);
  Form::first();
  if (kTiles == 2) {
    _tile_loadd(7, work[1].weights(group), 64);
    _tile_zero(1);
    Form::second();
  }
  settle();
}

template <int kTiles, class Store, class Form>
SLIPSTREAM_INLINE void keep_product(Work<Store, Form>* work) {
  settle();
  _tile_stored(0, work[0].c, 64);
  if (kTiles == 2) _tile_stored(1, work[1].c, 64);
  settle();
}

// Adds the kept product to the totals of kRows rows; what lies beyond the rows there are is never written out.
template <int kRows, class Store, class Form>
SLIPSTREAM_INLINE void add_product(const Work<Store, Form>& work, const Scale& s, const float* factors, __m512* totals) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++, factors += layout::kRowFactors) {
    totals[r] = add_scaled<Store::kShifted>(totals[r], Form::load(work.c + r * 16), s, factors);
    if (r % 4 == 3) settle();  // or compilers load all rows first, for which there are no registers
  }
}

// kTiles of columns side by side. Scales are worked out a group before they are needed: where tiles have just been
// stored, everything waits.
template <int kRows, int kTiles, class Store, class Form>
__attribute__((noinline)) void tile_strip(Work<Store, Form>* work) {
  const Strip& strip = *work->strip;
  const uint8_t* x = strip.job.values + strip.place(strip.first) * Form::kChunkBytes;
  const float* factors = strip.factors(strip.first);
  __m512 totals[kTiles][kRows];
  Scales<Store> scales[kTiles];
  Scale now[kTiles], next[kTiles];
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; t++) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) totals[t][r] = open_total(strip, r, work[t].tile);
    if (work[t].ready != work[t].codes(strip.first)) widen_group(work[t], work[t].codes(strip.first));
    next[t] = Scales<Store>::next(scales[t], strip.block, strip.first, work[t].tile);
  }
  for (int group = strip.first; group < strip.last; group++, x += Form::kChunkBytes) {
    multiply_group<kTiles>(work, group, x);
    for (int t = 0; t < kTiles; t++) widen_group(work[t], work[t].after(group));
    if (group > strip.first) {
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; t++) add_product<kRows>(work[t], now[t], factors, totals[t]);
      factors += layout::kFactors;
    }
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; t++) {
      now[t] = next[t];
      if (group + 1 < strip.last) next[t] = Scales<Store>::next(scales[t], strip.block, group + 1, work[t].tile);
    }
    keep_product<kTiles>(work);
  }
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; t++) {
    add_product<kRows>(work[t], now[t], factors, totals[t]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) close_total(strip, r, work[t].tile, totals[t][r]);
  }
}

// Both tiles of a strip of up to kRows rows.
template <int kRows, class Store, class Form>
void both_tiles(Work<Store, Form>* work) {
  if constexpr (kRows <= Form::kBothRows) {
    tile_strip<kRows, 2>(work);
  } else {
    for (int tile = 0; tile < 2; tile++) {
      work->start(*work->strip, tile);
      tile_strip<kRows, 1>(work);
    }
  }
}

// kPairs: the sequence 0 .. 7, of two rows each.
template <class Store, class Form, int... kPairs>
void grouped(const Product& job, std::integer_sequence<int, kPairs...>) {
  static constexpr void (*kStrips[])(Work<Store, Form>*) = {both_tiles<2 * kPairs + 2, Store, Form>...};
  Work<Store, Form> work[2];
  int shaped = 0;
  each_strip<Store>(job, [&](const Strip& strip) {
    if (strip.count != shaped) load_shapes(shaped = strip.count, Form::kDepth);
    for (int tile = 0; tile < 2; tile++) work[tile].start(strip, tile);
    kStrips[(strip.count - 1) / 2](work);
  });
  _tile_release();
}

template <class Store, class Form>
void grouped(const Product& job) {
  grouped<Store, Form>(job, std::make_integer_sequence<int, 8>());
}

// Products of 8-bit numbers have no rounding, and the rest is the same arithmetic: for a few rows, dot products give
// the same bits sooner.
template <class Store>
void grouped_bytes(const Product& job) {
  job.rows <= few_rows(job) ? by_quads<Store>(job) : grouped<Store, Quads<Store>>(job);
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
  write_totals(job, block, row, count, totals);
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
