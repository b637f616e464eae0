// Attention over a cache in bfloat16, in AMX tiles: sixteen queries by sixteen positions at a time.
//
// The softmax is kept up to date span by span as in attention_impl.h, and what is said there of bits holds here: a score's
// place in every sum is its key's position in the text. Queries and weights are rounded to bfloat16, sums are float32;
// powers are of two. Keys and values are multiplied where they lie. Positions that a row does not see have weight zero, and
// what lies there is replaced by zeros unless all of it is finite: zero times it is zero.
#include "attention_amx.h"

#include "layout.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)

#include <cmath>
#include <cstring>

#include "attention_views.h"
#include "softmax_avx512.h"
#include "tiles_amx.h"

namespace slipstream {
namespace {

constexpr int kSpan = kAttentionSpan;
constexpr int kDeep = 32;              // numbers that one tile instruction sums: of a head, or positions
constexpr int kParts = kSpan / kDeep;  // of a span
constexpr int kAhead = 4096;           // bytes that prefetching runs ahead of keys and values

constexpr int up_to(int n, int step) { return (n + step - 1) / step * step; }

class TileAttention {
 public:
  explicit TileAttention(const AttentionTask& task)
      : t_(task), queries_(task.rows * task.heads), whole_(up_to(queries_, 16)), pairs_((task.head_dim + 1) / 2),
        chunks_((pairs_ + 15) / 16), columns_(task.value_stride / 16) {
    float* at = t_.scratch;
    const auto take = [&](int floats) { return at += floats, at - floats; };
    queries_rounded_ = halves(take(chunks_ * whole_ * 16));
    sums_ = take(columns_ * whole_ * 16);
    totals_ = take(whole_ * 16);
    peaks_ = take(kTaskQueries);
    scores_ = take(whole_ * kSpan);
    weights_ = halves(take(whole_ * kSpan / 2));
    values_ = halves(take(kParts * columns_ * 256));
    extra_ = at;
  }

  void run() {
    shape();
    clear();
    each_span(t_, [&](int base) { add_span(base); });
    _tile_release();
    finish();
  }

 private:
  static uint16_t* halves(float* p) { return reinterpret_cast<uint16_t*>(p); }

  // Tiles 0, 1: sums of sixteen queries; 2: sixteen queries or their weights; 3: the end of queries whose numbers are no
  // whole chunks, 4: of keys; 5: sums and 6: weights of one row; 7: keys or values. With fewer queries, tiles have fewer
  // rows: their products take less time.
  void shape() const {
    TileShapes shapes;
    const int rest = pairs_ - (chunks_ - 1) * 16;
    const uint8_t some = static_cast<uint8_t>(queries_ < 16 ? queries_ : 16), one = static_cast<uint8_t>(t_.heads);
    const uint8_t rows[7] = {some, some, some, some, static_cast<uint8_t>(rest), one, one};
    std::memcpy(shapes.rows, rows, sizeof rows);
    shapes.bytes[3] = static_cast<uint16_t>(rest * 4);
    load_shapes(shapes);
  }

  View view(int row, int base) const { return view_of(t_, row, base); }
  const uint16_t* keys(int block) const {
    return static_cast<const uint16_t*>(t_.keys) + static_cast<size_t>(block) * pairs_ * 2 * kBlock;
  }
  // Two places, the even one first, number after number.
  const uint16_t* values(int place) const {
    return static_cast<const uint16_t*>(t_.values) + static_cast<size_t>(place / 2) * t_.value_stride * 2;
  }

  // Rounds the queries, [chunk][query][32], and empties the sums.
  void clear() {
    for (int q = 0; q < queries_; q++) {
      const float* from = t_.queries + static_cast<size_t>(q / t_.heads) * t_.query_stride + q % t_.heads * t_.head_dim;
      for (int c = 0; c < chunks_; c++) {
        const int left = t_.head_dim - c * kDeep;
        const __m512 low = _mm512_maskz_loadu_ps(lanes(0, left), from + c * kDeep);
        const __m512 high = _mm512_maskz_loadu_ps(lanes(0, left - 16), from + c * kDeep + 16);
        _mm512_storeu_si512(rounded(c, q), reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
      }
      for (int j = 0; j < columns_; j++) _mm512_storeu_ps(sums(j, q), _mm512_setzero_ps());
      _mm512_storeu_ps(totals_ + q * 16, _mm512_setzero_ps());
      peaks_[q] = -INFINITY;
    }
    settle();
  }
  uint16_t* rounded(int chunk, int query) const { return queries_rounded_ + (chunk * whole_ + query) * kDeep; }
  float* sums(int column, int query) const { return sums_ + (column * whole_ + query) * 16; }
  uint16_t* weights(int part, int query) const { return weights_ + (part * whole_ + query) * kDeep; }

  // Scores of all queries with the keys of blocks first .. end.
  void score_blocks(int first, int end, float* out, int stride) const {
    const int whole_chunks = pairs_ / 16;
    for (int block = first; block < end; block++, out += kBlock) {
      const uint16_t* from = keys(block);
      fetch(from, pairs_ * 32, keys((end_ + kBlock - 1) / kBlock));
      for (int q = 0; q < queries_; q += 16) {
        _tile_zero(0);
        for (int c = 0; c < whole_chunks; c++) {
          _tile_loadd(2, rounded(c, q), 64);
          _tile_loadd(7, from + c * 16 * 32, 64);
          _tile_dpbf16ps(0, 2, 7);
        }
        if (whole_chunks < chunks_) {
          _tile_loadd(3, rounded(whole_chunks, q), 64);
          _tile_loadd(4, from + whole_chunks * 16 * 32, 64);
          _tile_dpbf16ps(0, 3, 4);
        }
        _tile_stored(0, out + q * stride, stride * 4);
      }
    }
    settle();
  }

  // Fetches what lies kAhead bytes behind these entries, up to where the text ends.
  static void fetch(const uint16_t* from, int entries, const uint16_t* end) {
    from += kAhead / 2;
    const int64_t there = end - from < entries ? end - from : entries;
    for (int64_t i = 0; i < there; i += 32) _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T0);
  }

  void add_span(int base) {
    score_span(t_, base, scores_, extra_,
               [&](int first, int end, float* out, int stride) { score_blocks(first, end, out, stride); });
    for (int q = 0; q < queries_; q++) update(q, view(q / t_.heads, base), base);
    weigh(base);
  }

  // Turns a query's scores into weights under the new maximum and brings what was summed before to it.
  void update(int query, const View& v, int base) {
    const float fade = weigh_span(scores_ + query * kSpan, v.low - base, v.high - base, power_scale_, peaks_[query],
                                  totals_ + query * 16, weights(0, query), whole_ * kDeep);
    if (fade == 1) return;
    for (int j = 0; j < columns_; j++)  // never -0, to which adding nothing would do something
      _mm512_storeu_ps(sums(j, query), _mm512_fmadd_ps(_mm512_loadu_ps(sums(j, query)), _mm512_set1_ps(fade), _mm512_setzero_ps()));
  }

  // What the rows see of 32 positions.
  struct Part {
    int low, high;       // what any row sees
    bool direct, alike;  // at its own place; the same for each row
  };

  Part part(int from, int base) const {
    Part p{from + kDeep, from, true, true};
    int least = from, most = from + kDeep;  // what every row sees
    for (int r = 0; r < t_.rows; r++) {
      const View v = view(r, base);
      const int low = v.low > from ? v.low : from, high = v.high < from + kDeep ? v.high : from + kDeep;
      least = low > least ? low : least;
      most = high < most ? high : most;
      if (low >= high) continue;
      p.low = low < p.low ? low : p.low;
      p.high = high > p.high ? high : p.high;
      p.direct &= high <= t_.sights[r].direct;
    }
    p.alike = p.low == least && p.high == most;
    return p;
  }

  // Values of what a row sees of positions low .. high of 32 from base on, as the cache has them; zeros for the others.
  void copy_values(const Sight& sight, int base, int low, int high, uint16_t* to) const {
    const auto half = [&](int position, int d) __attribute__((always_inline)) {  // in the place of an even position
      if (position < low || position >= high) return _mm512_setzero_si512();
      const int at = place_of(sight, position);
      const __m512i both = _mm512_loadu_si512(values(at) + 2 * d);
      return at % 2 ? _mm512_srli_epi32(both, 16) : _mm512_and_si512(both, _mm512_set1_epi32(0xffff));
    };
    for (int pair = 0; pair < 16; pair++)
      for (int d = 0; d < t_.value_stride; d += 16, to += 32) {
        const __m512i even = half(base + 2 * pair, d), odd = half(base + 2 * pair + 1, d);
        _mm512_storeu_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
      }
    settle();
  }

  bool finite(int low, int high) const {
    const __m512i most = _mm512_set1_epi16(0x7f80);
    __mmask32 odd = 0;
    for (int p = low; p < high; p++)
      for (int d = 0; d < t_.value_stride; d += 16) {
        const __m512i x = _mm512_loadu_si512(values(p) + 2 * d);
        odd |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, most), most) & (p % 2 ? 0xaaaaaaaa : 0x55555555);
      }
    return !odd;
  }

  // Adds the weighted values of a span, as many parts at a time as all rows can share.
  void weigh(int base) const {
    const uint16_t* from[kParts];  // the values of each part
    int begin = 0;
    for (int i = 0; i < kParts; i++) {
      const int first = base + i * kDeep;
      const Part p = part(first, base);
      const bool seen = p.low < p.high;
      if (seen && p.direct && (p.alike || finite(p.low, p.high))) {
        uint16_t* copy = values_ + i * columns_ * 16 * 32;
        const bool whole = p.high - p.low == kDeep;
        from[i] = whole ? values(first) : copy;
        whole ? fetch(from[i], kDeep * t_.value_stride, values(end_))
              : copy_values({p.high, p.high, nullptr}, first, p.low, p.high, copy);
        continue;
      }
      add_parts(begin, i, from);
      begin = i + 1;
      for (int r = 0; seen && r < t_.rows; r++) add_row(r, i, base);
    }
    add_parts(begin, kParts, from);
  }

  // Two tiles of columns at a time, the last maybe alone.
  void add_parts(int begin, int end, const uint16_t* const* from) const {
    if (begin >= end) return;
    int j = 0;
    for (; j + 1 < columns_; j += 2)
      for (int q = 0; q < queries_; q += 16) add_columns<true>(j, q, begin, end, from);
    for (int q = 0; j < columns_ && q < queries_; q += 16) add_columns<false>(j, q, begin, end, from);
    settle();
  }

  template <bool kTwo>
  void add_columns(int column, int query, int begin, int end, const uint16_t* const* from) const {
    const int stride = t_.value_stride * 4;
    _tile_loadd(0, sums(column, query), 64);
    if (kTwo) _tile_loadd(1, sums(column + 1, query), 64);
    for (int i = begin; i < end; i++) {
      _tile_loadd(2, weights(i, query), 64);
      _tile_loadd(7, from[i] + column * 32, stride);
      _tile_dpbf16ps(0, 2, 7);
      if (!kTwo) continue;
      _tile_loadd(7, from[i] + column * 32 + 32, stride);
      _tile_dpbf16ps(1, 2, 7);
    }
    _tile_stored(0, sums(column, query), 64);
    if (kTwo) _tile_stored(1, sums(column + 1, query), 64);
  }

  // One row's queries, with values of what it sees alone.
  void add_row(int row, int index, int base) const {
    const View v = view(row, base);
    copy_values(t_.sights[row], base + index * kDeep, v.low, v.high, values_);
    const int q = row * t_.heads, stride = t_.value_stride * 4;
    _tile_loadd(6, weights(index, q), 64);
    for (int j = 0; j < columns_; j++) {
      _tile_loadd(5, sums(j, q), 64);
      _tile_loadd(7, values_ + j * 32, stride);
      _tile_dpbf16ps(5, 6, 7);
      _tile_stored(5, sums(j, q), 64);
    }
    settle();
  }

  void finish() const {
    for (int q = 0; q < queries_; q++) {
      const __m512 total = _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_loadu_ps(totals_ + q * 16)));
      float* out = t_.out + static_cast<size_t>(q / t_.heads) * t_.out_stride + q % t_.heads * t_.head_dim;
      for (int j = 0; j < columns_; j++)
        _mm512_mask_storeu_ps(out + j * 16, lanes(0, t_.head_dim - j * 16),
                              _mm512_div_ps(_mm512_loadu_ps(sums(j, q)), total));
    }
  }

  const AttentionTask& t_;
  const int queries_, whole_;          // their number, and up to whole tiles
  const int pairs_, chunks_, columns_;  // of a key's numbers: two, and 32 together; tiles of a value's numbers
  const int end_ = end_of(t_);  // positions that any row sees
  const float power_scale_ = t_.scale * 1.44269504f;
  uint16_t *queries_rounded_, *weights_, *values_;  // weights [part][query][32]; values, copied
  float *sums_, *totals_, *peaks_, *scores_, *extra_;  // sums [column][query][16]
};

void attend_in_tiles(const AttentionTask& task) { TileAttention(task).run(); }

}  // namespace

Attend amx_attention() { return attend_in_tiles; }

}  // namespace slipstream

#else

namespace slipstream {

Attend amx_attention() { return nullptr; }

}  // namespace slipstream

#endif
