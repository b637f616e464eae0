// The product for rows of a prompt, with AMX tiles: weights become bfloat16 numbers, and nothing is scaled per row.
//
// A strip of a block's weights is rounded to pairs of bfloat16 once for all rows, while the rows go over the block before
// it; both lie in the second-level cache. 32 rows by 32 columns are multiplied at a time; totals leave the tiles only
// between strips, as float32, which changes no bit. A total is one chain of additions over all inputs, from the bias
// on, however many rows there are.
#include "level.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)

#include "tiles_amx.h"
#include "vectors_avx512.h"

namespace slipstream {
namespace {

constexpr int kRowsAtOnce = 256;  // whose activations of a strip stay in the cache
constexpr int kPairs = 1024;      // bytes of a group of 16 columns in pairs
constexpr int kPiece = 4;         // groups whose pairs are made together for a few rows: more leave the first-level cache

// Even and odd inputs of 16 columns as pairs of bfloat16, to the nearest; halfway, away from zero.
SLIPSTREAM_INLINE __m512i pairs_of(__m512 even, __m512 odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_add_epi32(_mm512_castps_si512(odd), half));
}

// One group of 16 columns: 4-bit codes -> 16 vectors of pairs.
SLIPSTREAM_INLINE void round_four(const uint8_t* codes, const Scale& s, uint8_t* pairs) {
  const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    const __m512i lane = _mm512_load_si512(codes + v * 64);
    __m512 value[8];  // by nibble: input 4 * (v + 4 * (i & 1)) + layout::kQuad[i >> 1]
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
      value[i] = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(lane, 4 * i), numbers), s.d, s.m);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)  // nibbles i and i + 4 are neighbours
      _mm512_store_si512(pairs + (2 * (v + 4 * (i & 1)) + (i >> 1)) * 64, pairs_of(value[i], value[i + 4]));
  }
}

// The same from 8-bit codes, whose scales undo the factor that a byte at the top of its lane gets (widen_eight).
SLIPSTREAM_INLINE void round_eight(const uint8_t* codes, const Scale& s, uint8_t* pairs) {
  const TopBytes top = top_bytes();
#pragma GCC unroll 8
  for (int r = 0; r < 8; r++) {
    const __m512i lane = _mm512_load_si512(codes + r * 64);
    __m512 value[4];  // by byte: input 4 * r + layout::kQuad[b]
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++) value[b] = _mm512_mul_ps(raised(lane, top, b), s.d);
    _mm512_store_si512(pairs + 2 * r * 64, pairs_of(value[0], value[2]));
    _mm512_store_si512(pairs + (2 * r + 1) * 64, pairs_of(value[1], value[3]));
  }
}

// Weights that are pairs already: they are fetched, and multiplied where they lie.
struct PairGroups {
  static constexpr bool kAsIs = true;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * layout::kBf16Group; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * layout::kBf16Group; }
  SLIPSTREAM_INLINE void widen(const uint8_t* block, int group, int tile, uint8_t*) {
    const uint8_t* codes = at(block, group) + tile * kPairs;
    fetch<kPairs / 64>(codes);
  }
};

template <class Store>
struct CodeGroups : Store {
  static constexpr bool kAsIs = false;
  SLIPSTREAM_INLINE void widen(const uint8_t* block, int group, int tile, uint8_t* pairs) {
    const uint8_t* codes = Store::at(block, group) + tile * Store::kTileCodes;
    prefetch<Store::kTileCodes + 64>(codes);
    const Scale s = Store::scale(block, group, tile);
    Store::kFour ? round_four(codes, s, pairs) : round_eight(codes, s, pairs);
  }
};

// A strip of weights on its way to pairs, a tile of a group at a time: `tiles` of them during so many steps.
template <class Store>
struct Ahead {
  const uint8_t* block;
  uint8_t* pairs;
  int group, tiles, steps;
  int tile = 0, due = 0;

  SLIPSTREAM_INLINE void widen(Ahead& own) {
    Store::widen(own.block, own.group, own.tile, own.pairs);
    own.pairs += kPairs;
    own.group += own.tile;
    own.tile ^= 1;
  }
  SLIPSTREAM_INLINE void step(Ahead& own) {
    for (own.due += own.tiles; own.due >= own.steps; own.due -= own.steps) widen(own);
  }
};

// Where totals of rows are read and written: the first, and the floats from one to the next (0: all begin alike).
struct Totals {
  const float* from;
  size_t read;
  float* to;
  size_t write;
};

template <bool kTwo>
SLIPSTREAM_INLINE void read_totals(const Totals& c) {
  _tile_loadd(0, c.from, c.read * 4);
  _tile_loadd(1, c.from + 16, c.read * 4);
  if (!kTwo) return;
  _tile_loadd(2, c.from + 16 * c.read, c.read * 4);
  _tile_loadd(3, c.from + 16 * c.read + 16, c.read * 4);
}

template <bool kTwo>
SLIPSTREAM_INLINE void write_totals(const Totals& c) {
  _tile_stored(0, c.to, c.write * 4);
  _tile_stored(1, c.to + 16, c.write * 4);
  if (!kTwo) return;
  _tile_stored(2, c.to + 16 * c.write, c.write * 4);
  _tile_stored(3, c.to + 16 * c.write + 16, c.write * 4);
}

// Adds groups first..last of up to 16 (or 32: kTwo) rows; step() after each.
template <bool kTwo, class Step>
SLIPSTREAM_INLINE void add_groups(const Strip& strip, int first, int last, const uint8_t* pairs, const Step& step) {
  const size_t chunk = static_cast<size_t>(strip.job.groups) * layout::kBf16Rows;
  const uint8_t* x = strip.job.values + strip.place(first) * layout::kBf16Rows;
  for (int g = first; g < last; g++, x += layout::kBf16Rows, pairs += 2 * kPairs) {
    _tile_loadd(4, x, 64);
    _tile_loadd(6, pairs, 64);
    _tile_loadd(7, pairs + kPairs, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (kTwo) {
      _tile_loadd(5, x + chunk, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    step();
  }
}

// Rows times a strip of pairs, while the next strip is widened.
template <bool kTwo, class Store>
SLIPSTREAM_INLINE void multiply_rows(const Strip& strip, const uint8_t* pairs, const Totals& c, Ahead<Store>& ahead) {
  read_totals<kTwo>(c);
  add_groups<kTwo>(strip, strip.first, strip.last, pairs, [&]() __attribute__((always_inline)) { Ahead<Store>::step(ahead); });
  write_totals<kTwo>(c);
}

// The only rows there are: pairs are made a few groups at a time, in memory that stays in the first-level cache.
template <bool kTwo, class Store>
SLIPSTREAM_INLINE void multiply_few(const Strip& strip, uint8_t* pairs, const Totals& c) {
  read_totals<kTwo>(c);
  for (int first = strip.first, last; first < strip.last; first = last) {
    last = first + kPiece < strip.last ? first + kPiece : strip.last;
    for (int g = first; g < last; g++)
      for (int tile = 0; tile < 2; tile++) Store::widen(strip.block, g, tile, pairs + (2 * (g - first) + tile) * kPairs);
    settle();
    add_groups<kTwo>(strip, first, last, pairs, [] {});
    settle();
  }
  write_totals<kTwo>(c);
}

// Rows that fill no tile, and the last columns, pass through memory of their own.
template <class Work>
__attribute__((noinline)) void at_an_edge(const Strip& strip, const float* bias, const Work& work) {
  alignas(64) float totals[32 * 32] = {};
  for (int r = 0; strip.first && r < strip.count; r++)
    for (int t = 0; t < 2; t++) _mm512_store_ps(totals + r * 32 + t * 16, open_total(strip, r, t));
  settle();
  work(strip.first ? Totals{totals, 32, totals, 32} : Totals{bias, 0, totals, 32});
  settle();
  for (int r = 0; r < strip.count; r++)
    for (int t = 0; t < 2; t++)
      _mm512_mask_storeu_ps(strip.y(t) + r * static_cast<size_t>(strip.job.stride), strip.mask(t),
                            _mm512_load_ps(totals + r * 32 + t * 16));
}

// Calls work with where the totals of up to 32 rows are.
template <class Work>
SLIPSTREAM_INLINE void with_totals(const Strip& strip, const Work& work) {
  alignas(64) static const float kZeros[32] = {};
  const Product& job = strip.job;
  const float* bias = job.bias ? job.bias + strip.index * 32 : kZeros;
  const size_t stride = job.stride;
  float* y = strip.y(0);
  if (strip.index * 32 + 32 > job.out || strip.count < 32) return at_an_edge(strip, bias, work);
  work(strip.first ? Totals{y, stride, y, stride} : Totals{bias, 0, y, stride});
}

// All rows of a strip, 32 at a time.
template <class Store>
void multiply_strip(Strip strip, const uint8_t* pairs, Ahead<Store> ahead) {
  settle();
  for (const int end = strip.row + strip.count; strip.row < end; strip.row += 32) {
    strip.count = end - strip.row < 32 ? end - strip.row : 32;
    with_totals(strip, [&](const Totals& c) {
      Ahead<Store> mine = ahead;  // a copy: its numbers stay in registers
      strip.count > 16 ? multiply_rows<true>(strip, pairs, c, mine) : multiply_rows<false>(strip, pairs, c, mine);
      ahead = mine;
    });
  }
  settle();
}

// Groups first..last of all blocks, for rows row..row + count.
template <class Store>
void multiply_blocks(const Product& job, int first, int last, int row, int count) {
  alignas(64) static thread_local uint8_t pairs[2][kStrip * 2 * kPairs];
  const size_t bytes = Store::block_bytes(job.groups);
  const uint8_t* block = job.codes + job.first * bytes;
  if (count <= 32 && !Store::kAsIs) {
    for (int index = job.first; index < job.last; index++, block += bytes) {
      const Strip strip{job, block, nullptr, index, first, last, row, count};
      with_totals(strip, [&](const Totals& c) {
        count > 16 ? multiply_few<true, Store>(strip, pairs[0], c) : multiply_few<false, Store>(strip, pairs[0], c);
      });
    }
    return;
  }
  const int tiles = 2 * (last - first), steps = (count + 31) / 32 * (last - first);
  Ahead<Store> begin{block, pairs[0], first, tiles, steps};
  for (int i = 0; i < tiles; i++) Ahead<Store>::widen(begin);
  for (int index = job.first; index < job.last; index++, block += bytes) {
    const int turn = (index - job.first) % 2, more = index + 1 < job.last ? tiles : 0;
    multiply_strip<Store>({job, block, nullptr, index, first, last, row, count},
                          Store::kAsIs ? Store::at(block, first) : pairs[turn],
                          {block + bytes, pairs[1 - turn], first, more, steps});
  }
}

template <class Store>
void product(const Product& job) {
  if (job.first >= job.last) return;
  load_shapes(TileShapes());  // whole: rows that a chunk lacks are multiplied with whatever lies there, never written out
  for (int row = 0; row < job.rows; row += kRowsAtOnce) {
    const int count = job.rows - row < kRowsAtOnce ? job.rows - row : kRowsAtOnce;
    for (int first = 0; first < job.groups; first += kStrip)
      multiply_blocks<Store>(job, first, first + kStrip < job.groups ? first + kStrip : job.groups, row, count);
  }
  _tile_release();
}

const PromptTable kTable = {product<PairGroups>, product<CodeGroups<HalfGroups>>, product<CodeGroups<SuperGroups>>,
                            product<CodeGroups<EightGroups<true>>>};

}  // namespace

const PromptTable* amx_prompt_table() { return &kTable; }

}  // namespace slipstream

#else

namespace slipstream {

const PromptTable* amx_prompt_table() { return nullptr; }

}  // namespace slipstream

#endif
