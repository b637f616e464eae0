// Packed groups in AVX-512 registers: codes widened for dot products, scales, and the step that adds a group's product
// to a row's total. Shared by the avx512 and amx levels, which therefore agree on everything but bfloat16 sums.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "layout.h"
#include "level.h"

namespace slipstream {
namespace {

constexpr int kAhead = 8192;  // bytes that prefetching, into the second-level cache, runs ahead of the codes in use

template <int kBytes>
SLIPSTREAM_INLINE void prefetch(const uint8_t* codes) {
#pragma GCC unroll 32
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + i), _MM_HINT_T1);
}

// Fetches kLines lines, the next ones of a stream that is read once.
template <int kLines>
SLIPSTREAM_INLINE void fetch(const uint8_t*& stream) {
#pragma GCC unroll 32
  for (int i = 0; i < kLines; i++) _mm_prefetch(reinterpret_cast<const char*>(stream + i * 64), _MM_HINT_T1);
  stream += kLines * 64;
}

// Four bytes in every lane.
SLIPSTREAM_INLINE __m512i spread(const void* four) {
  int32_t word;
  std::memcpy(&word, four, 4);
  return _mm512_set1_epi32(word);
}

// d and m of 16 columns of one group.
struct Scale {
  __m512 d, m;
};

SLIPSTREAM_INLINE __m512 halves(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
}

SLIPSTREAM_INLINE __m512 bytes(const uint8_t* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from))));
}

// Storages: where a group lies, how it is widened, its scales.
struct HalfGroups {
  static constexpr int kBytes = layout::kHalfGroup;
  static constexpr bool kShifted = true, kFour = true;
  static constexpr int kTileCodes = layout::kFourCodes / 2;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * kBytes; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * kBytes; }
  SLIPSTREAM_INLINE Scale scale(const uint8_t* block, int group, int tile) {
    const uint8_t* own = at(block, group) + layout::kFourCodes + tile * 32;
    return {halves(own), halves(own + 64)};
  }
};

struct SuperGroups {
  static constexpr int kBytes = layout::kSuperGroup;
  static constexpr bool kShifted = true, kFour = true;
  static constexpr int kTileCodes = layout::kFourCodes / 2;
  static size_t block_bytes(int groups) { return layout::super_offset(groups) - layout::kHeader; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + layout::super_offset(group); }
  // d and m of 16 columns in all groups of a super-block.
  SLIPSTREAM_INLINE Scale shared(const uint8_t* block, int group, int tile) {
    const uint8_t* header = block + layout::super_offset(group & ~7) - layout::kHeader + tile * 32;
    return {halves(header), halves(header + 64)};
  }
  SLIPSTREAM_INLINE Scale scale(const uint8_t* block, int group, int tile, const Scale& shared) {
    const uint8_t* factors = at(block, group) + layout::kFourCodes + tile * 16;
    return {_mm512_mul_ps(shared.d, bytes(factors)), _mm512_mul_ps(shared.m, bytes(factors + 32))};
  }
  SLIPSTREAM_INLINE Scale scale(const uint8_t* block, int group, int tile) {
    return scale(block, group, tile, shared(block, group, tile));
  }
};

constexpr float kWiden = 1.0f / (1 << 24);  // undoes the factor of widen_eight

// kWidened: the codes are multiplied in the form of widen_eight.
template <bool kWidened>
struct EightGroups {
  static constexpr int kBytes = layout::kEightGroup;
  static constexpr bool kShifted = false, kFour = false;
  static constexpr int kTileCodes = layout::kEightCodes / 2;
  static size_t block_bytes(int groups) { return static_cast<size_t>(groups) * kBytes; }
  static const uint8_t* at(const uint8_t* block, int group) { return block + static_cast<size_t>(group) * kBytes; }
  SLIPSTREAM_INLINE Scale scale(const uint8_t* block, int group, int tile) {
    __m512 d = halves(at(block, group) + layout::kEightCodes + tile * 32);
    return {kWidened ? _mm512_mul_ps(d, _mm512_set1_ps(kWiden)) : d, _mm512_setzero_ps()};
  }
};

// Scales of a tile, group after group from the beginning of a strip on: what groups share is read once.
template <class Store>
struct Scales {
  SLIPSTREAM_INLINE Scale next(Scales&, const uint8_t* block, int group, int tile) { return Store::scale(block, group, tile); }
};

template <>
struct Scales<SuperGroups> {
  alignas(64) float d[16], m[16];  // in memory: registers are for totals
  SLIPSTREAM_INLINE Scale next(Scales& own, const uint8_t* block, int group, int tile) {
    if (group % layout::kSuperGroups == 0) {
      const Scale shared = SuperGroups::shared(block, group, tile);
      _mm512_store_ps(own.d, shared.d);
      _mm512_store_ps(own.m, shared.m);
    }
    return SuperGroups::scale(block, group, tile, {_mm512_load_ps(own.d), _mm512_load_ps(own.m)});
  }
};

// 4-bit codes as bfloat16 pairs: 16 vectors of a tile. A code is an index into a table of the numbers 0 to 15; the
// table is there twice because the instruction looks at five bits and the fifth belongs to the next code.
SLIPSTREAM_INLINE void widen_four(const uint8_t* codes, uint8_t* pairs) {
  alignas(64) static const uint16_t kNumbers[32] = {
      0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
      0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
      0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
  const __m512i numbers = _mm512_load_si512(kNumbers);
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    __m512i lane = _mm512_load_si512(codes + v * 64);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {  // nibble j of each 16-bit half: vector 2 * (v + 4 * (j & 1)) + (j >> 1)
      __m512i pair = _mm512_permutexvar_epi16(j ? _mm512_srli_epi16(lane, 4 * j) : lane, numbers);
      _mm512_store_si512(pairs + (2 * (v + 4 * (j & 1)) + (j >> 1)) * 64, pair);
    }
  }
}

// For each byte of a lane: a shuffle that moves it to the top, with zeros below (0x80 clears).
struct TopBytes {
  __m512i at[4];
};

SLIPSTREAM_INLINE TopBytes top_bytes() {
  TopBytes top;
  for (int b = 0; b < 4; b++)
    top.at[b] = _mm512_set4_epi32(0x0c808080 + b * 0x01000000, 0x08808080 + b * 0x01000000, 0x04808080 + b * 0x01000000,
                                  0x00808080 + b * 0x01000000);
  return top;
}

// Byte b of each lane, signed, times 2^24.
SLIPSTREAM_INLINE __m512 raised(__m512i lane, const TopBytes& top, int b) {
  return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(lane, top.at[b]));
}

// 8-bit codes times 2^24 as bfloat16 pairs: 16 vectors of a tile. A byte moved to the top of its lane, with zeros below,
// converts without being sign-extended first; small integers are exact, so rounding is dropping low bits.
SLIPSTREAM_INLINE void widen_eight(const uint8_t* codes, uint8_t* pairs) {
  const int high = static_cast<int>(0xffff0000u);
  const TopBytes top = top_bytes();
#pragma GCC unroll 8
  for (int r = 0; r < 8; r++) {
    __m512i lane = _mm512_load_si512(codes + r * 64);
    __m512i number[4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++)
      number[b] = _mm512_castps_si512(raised(lane, top, b));
#pragma GCC unroll 2
    for (int b = 0; b < 2; b++) {  // bytes 0 and 2 are neighbours, then 1 and 3
      constexpr int kOrOfAnd = 0xf8;  // a | (b & c)
      __m512i pair = _mm512_ternarylogic_epi32(_mm512_srli_epi32(number[b], 16), number[b + 2], _mm512_set1_epi32(high),
                                               kOrOfAnd);
      _mm512_store_si512(pairs + (2 * r + b) * 64, pair);
    }
  }
}

// 4-bit codes as bytes: 8 vectors of a tile.
SLIPSTREAM_INLINE void widen_bytes(const uint8_t* codes, uint8_t* quads) {
  const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    __m512i both = _mm512_load_si512(codes + v * 64);
    _mm512_store_si512(quads + v * 64, _mm512_and_si512(both, low));
    _mm512_store_si512(quads + (v + 4) * 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
  }
}

// total += sum * m, for 16 columns of one row.
template <bool kShifted>
SLIPSTREAM_INLINE __m512 add_shift(__m512 total, const Scale& s, const float* factors) {
  return kShifted ? _mm512_fmadd_ps(_mm512_set1_ps(factors[1]), s.m, total) : total;
}

// total += product * d + sum * m.
template <bool kShifted>
SLIPSTREAM_INLINE __m512 add_scaled(__m512 total, __m512 product, const Scale& s, const float* factors) {
  return add_shift<kShifted>(_mm512_fmadd_ps(product, s.d, total), s, factors);
}

// The same for a product of 8-bit numbers: d, then the scale of the row.
template <bool kShifted>
SLIPSTREAM_INLINE __m512 add_scaled(__m512 total, __m512i product, const Scale& s, const float* factors) {
  const __m512 real = _mm512_mul_ps(_mm512_cvtepi32_ps(product), s.d);
  return add_shift<kShifted>(_mm512_fmadd_ps(real, _mm512_set1_ps(factors[0]), total), s, factors);
}

// Groups are worked through in strips, so that the activations of a strip stay in the first-level cache while all blocks
// go by; between strips the totals lie in y. A total is the same chain of additions wherever it rests.
constexpr int kStrip = 48;  // whole super-blocks

struct Strip {
  const Product& job;
  const uint8_t* block;  // where the block's storage starts
  const uint8_t* next;   // first of the codes to fetch meanwhile
  int index, first, last, row, count;  // block; groups first..last; up to 16 rows from `row`
  size_t place(int group) const { return static_cast<size_t>(row / 16) * job.groups + group; }
  const float* factors(int group, int r = 0) const {
    return job.factors + place(group) * layout::kFactors + r * layout::kRowFactors;
  }
  float* y(int tile) const { return job.y + static_cast<size_t>(row) * job.stride + index * 32 + tile * 16; }
  // the columns of a tile that exist
  __mmask16 mask(int tile) const {
    int width = job.out - index * 32 - tile * 16;
    return width >= 16 ? 0xffff : width <= 0 ? 0 : static_cast<__mmask16>((1 << width) - 1);
  }
};

template <class Store, class Visit>
SLIPSTREAM_INLINE void each_strip(const Product& job, const Visit& visit) {
  const size_t bytes = Store::block_bytes(job.groups);
  for (int first = 0; first < job.groups; first += kStrip) {
    int last = first + kStrip < job.groups ? first + kStrip : job.groups;
    for (int index = job.first; index < job.last; index++) {
      const uint8_t* block = job.codes + index * bytes;
      const uint8_t* next = index + 1 < job.last ? Store::at(block + bytes, first)
                            : last < job.groups  ? Store::at(job.codes + job.first * bytes, last)
                                                 : Store::at(block + bytes, 0);  // what this thread takes next, most likely
      for (int row = 0; row < job.rows; row += 16)
        visit(Strip{job, block, next, index, first, last, row, job.rows - row < 16 ? job.rows - row : 16});
    }
  }
}

// The total of a row before a strip, and after it: with the bias once all groups are in.
SLIPSTREAM_INLINE __m512 open_total(const Strip& strip, int r, int tile) {
  if (!strip.first || r >= strip.count) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(strip.mask(tile), strip.y(tile) + static_cast<size_t>(r) * strip.job.stride);
}

SLIPSTREAM_INLINE void close_total(const Strip& strip, int r, int tile, __m512 total) {
  if (r >= strip.count) return;
  const float* bias = strip.last == strip.job.groups ? strip.job.bias : nullptr;
  if (bias) total = _mm512_add_ps(total, _mm512_loadu_ps(bias + strip.index * 32 + tile * 16));
  _mm512_mask_storeu_ps(strip.y(tile) + static_cast<size_t>(r) * strip.job.stride, strip.mask(tile), total);
}

// Writes the finished totals [count][32] of a block.
SLIPSTREAM_INLINE void write_totals(const Product& job, int block, int row, int count, const float* totals) {
  const Strip whole{job, nullptr, nullptr, block, 0, job.groups, row, count};
  for (int r = 0; r < count; r++)
    for (int t = 0; t < 2; t++) close_total(whole, r, t, _mm512_load_ps(totals + r * 32 + t * 16));
}

}  // namespace
}  // namespace slipstream
