// Attention over the cache with a softmax kept up to date span by span (Milakov and Gimelshein 1805.02867).
//
// A score's place in every sum is its key's position in the text, never its place in memory, and all rows of a task
// walk the same spans of positions: a draft scored as a tree, as a chain, in a batch or as a prompt has the same bits.
// Queries (a row's heads, row after row) share loads of keys and values; each keeps its own chain of additions. Scores
// of positions a row may not see are dropped before they meet anything, and values of such positions are not read, so
// stale entries, even NaN, cannot leak.
#pragma once

#include <cmath>

#include "row_ops.h"
#include "simd.h"

namespace slipstream::SLIPSTREAM_VARIANT {

constexpr int kSpan = kAttentionSpan;
constexpr int kTogether = kParts == 1 ? 6 : 4;  // queries that share a load: as many sums as there are registers for
constexpr int kChunk = kParts == 1 ? 4 : 1;     // vectors of a value row at once
constexpr int kAhead = 4096;                    // bytes that prefetching runs ahead of keys and values

inline int whole(int n) { return (n + kVec - 1) / kVec * kVec; }

// Splits the task's scratch: [queries] of each; `extra` holds scores of draft nodes by their place in the cache.
struct Scratch {
  float *sums, *totals, *peaks, *turned, *scores, *extra;

  explicit Scratch(const AttentionTask& t) {
    const int queries = kTaskRows * kTaskHeads;
    sums = t.scratch;
    totals = sums + queries * t.value_stride;
    peaks = totals + queries * kVec;
    turned = peaks + queries;
    scores = turned + queries * t.value_stride;
    extra = scores + queries * kSpan;
  }
};

// out[query][position] of B blocks of keys; q holds the queries turned: [head_dim][Q].
template <class T, int Q, int B>
inline void score(const T* keys, int dim, const float* q, float scale, float* out, int stride) {
  Vec dots[Q][B];
#pragma GCC unroll 8
  for (int h = 0; h < Q; h++)
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) dots[h][b] = set(0);
  for (int d = 0; d < dim; d++) {
    Vec k[B];
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) {
      const T* from = keys + (static_cast<size_t>(b) * dim + d) * kBlock;
      __builtin_prefetch(reinterpret_cast<const char*>(from) + kAhead);
      k[b] = load(from);
    }
#pragma GCC unroll 8
    for (int h = 0; h < Q; h++) {
      const Vec x = set(q[d * Q + h]);
#pragma GCC unroll 8
      for (int b = 0; b < B; b++) dots[h][b] = madd(k[b], x, dots[h][b]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < Q; h++)
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) store(out + h * stride + b * kBlock, mul(dots[h][b], set(scale)));
}

template <class T, int Q>
inline void score_blocks(const T* keys, int dim, int blocks, const float* q, float scale, float* out, int stride) {
  constexpr int kAtOnce = kParts > 1 ? 1 : Q > 3 ? 2 : 4;
  const size_t step = static_cast<size_t>(dim) * kBlock;
  int b = 0;
  for (; b + kAtOnce <= blocks; b += kAtOnce)
    score<T, Q, kAtOnce>(keys + b * step, dim, q, scale, out + b * kBlock, stride);
  for (; b < blocks; b++) score<T, Q, 1>(keys + b * step, dim, q, scale, out + b * kBlock, stride);
}

// sums[query] += weights[query][i] * values[i], one position after the other, for P vectors of the value row.
template <class T, int Q, int P>
inline void weigh_part(const T* values, int stride, int count, const float* weights, float* sums) {
  Vec acc[Q][P];
#pragma GCC unroll 8
  for (int h = 0; h < Q; h++)
#pragma GCC unroll 8
    for (int j = 0; j < P; j++) acc[h][j] = load(sums + h * stride + j * kVec);
  for (int i = 0; i < count; i++) {
    const T* from = values + static_cast<size_t>(i) * stride;
    Vec v[P];
#pragma GCC unroll 8
    for (int j = 0; j < P; j++) {
      if (j * kVec * sizeof(T) % 64 == 0) __builtin_prefetch(reinterpret_cast<const char*>(from + j * kVec) + kAhead);
      v[j] = load(from + j * kVec);
    }
#pragma GCC unroll 8
    for (int h = 0; h < Q; h++) {
      const Vec w = set(weights[h * kSpan + i]);
#pragma GCC unroll 8
      for (int j = 0; j < P; j++) acc[h][j] = madd(v[j], w, acc[h][j]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < Q; h++)
#pragma GCC unroll 8
    for (int j = 0; j < P; j++) store(sums + h * stride + j * kVec, acc[h][j]);
}

template <class T, int Q>
inline void weigh(const T* values, int stride, int count, const float* weights, float* sums) {
  int d = 0;
  for (; d + kChunk * kVec <= stride; d += kChunk * kVec)
    weigh_part<T, Q, kChunk>(values + d, stride, count, weights, sums + d);
  for (; d < stride; d += kVec) weigh_part<T, Q, 1>(values + d, stride, count, weights, sums + d);
}

template <int Q>
struct Count {};

// Calls work(first, Count<Q>()) for queries 0 to `count`, a few together.
template <class Work>
inline void in_groups(int count, const Work& work) {
  int first = 0;
  for (; kTogether == 6 && first + 6 <= count; first += 6) work(first, Count<6>());
  for (; first + 4 <= count; first += 4) work(first, Count<4>());
  switch (count - first) {
    case 3: return work(first, Count<3>());
    case 2: return work(first, Count<2>());
    case 1: return work(first, Count<1>());
  }
}

template <class T>
class Attention {
 public:
  explicit Attention(const AttentionTask& task) : t_(task), scratch_(task), queries_(task.rows * task.heads) {}

  void run() {
    clear();
    int shortest = t_.sights[0].end, last = 0;
    for (int r = 0; r < t_.rows; r++) {
      const int end = t_.sights[r].end;
      shortest = end < shortest ? end : shortest;
      last = end > last ? end : last;
    }
    int base = t_.window > 0 && shortest > t_.window ? (shortest - t_.window) / kSpan * kSpan : 0;
    for (; base < last; base += kSpan) add_span(base);
    finish();
  }

 private:
  // What a row sees of a span: positions low..high, those below near at their own place.
  struct View {
    int low, near, high;
  };

  View view(int row, int base) const {
    const Sight& s = t_.sights[row];
    const int begin = t_.window > 0 && s.end > t_.window ? s.end - t_.window : 0;
    const int low = begin > base ? begin : base, high = s.end < base + kSpan ? s.end : base + kSpan;
    return {low, high < s.direct ? high : s.direct, high};
  }

  const T* keys(int block) const {
    return static_cast<const T*>(t_.keys) + static_cast<size_t>(block) * t_.head_dim * kBlock;
  }
  const T* values(int place) const {
    return static_cast<const T*>(t_.values) + static_cast<size_t>(place) * t_.value_stride;
  }
  float* scores(int query) const { return scratch_.scores + query * kSpan; }
  float* sums(int query) const { return scratch_.sums + static_cast<size_t>(query) * t_.value_stride; }

  // Turns the queries, group by group, and empties the sums.
  void clear() {
    in_groups(queries_, [&](int first, auto count) { turn(first, count); });
    for (int i = 0; i < queries_; i++) {
      for (int d = 0; d < t_.value_stride; d += kVec) store(sums(i) + d, set(0));
      store(scratch_.totals + i * kVec, set(0));
      scratch_.peaks[i] = -INFINITY;
    }
  }

  template <int Q>
  void turn(int first, Count<Q>) {
    float* to = turned(first);
    for (int h = 0; h < Q; h++) {
      const int row = (first + h) / t_.heads, head = (first + h) % t_.heads;
      const float* q = t_.queries + static_cast<size_t>(row) * t_.query_stride + head * t_.head_dim;
      for (int d = 0; d < t_.head_dim; d++) to[d * Q + h] = q[d];
    }
  }
  float* turned(int query) const { return scratch_.turned + static_cast<size_t>(query) * t_.head_dim; }

  void score_all(int first_block, int end_block, float* out, int stride) {
    in_groups(queries_, [&](int first, auto count) {
      score_group(first, count, first_block, end_block - first_block, out + first * stride, stride);
    });
  }
  template <int Q>
  void score_group(int first, Count<Q>, int block, int blocks, float* out, int stride) {
    score_blocks<T, Q>(keys(block), t_.head_dim, blocks, turned(first), t_.scale, out, stride);
  }

  void weigh_some(int first, int count, int place, int places, int at) {
    in_groups(count, [&](int q, auto many) { weigh_group(first + q, many, place, places, at); });
  }
  template <int Q>
  void weigh_group(int query, Count<Q>, int place, int places, int at) {
    weigh<T, Q>(values(place), t_.value_stride, places, scores(query) + at, sums(query));
  }

  void add_span(int base) {
    int low = base + kSpan, far = 0, common = base + kSpan;  // every row that sees the span sees low..common directly
    bool alike = true;
    for (int r = 0; r < t_.rows; r++) {
      const View v = view(r, base);
      alike &= v.low == base && v.low < v.high;
      low = v.low < low ? v.low : low;
      far = v.near > far ? v.near : far;
      common = v.near < common ? v.near : common;
    }
    if (low < far) {
      const int first = low / kBlock;
      score_all(first, (far + kBlock - 1) / kBlock, scratch_.scores + first * kBlock - base, kSpan);
    }
    score_paths(base);
    for (int i = 0; i < queries_; i++) update(i, view(i / t_.heads, base), base);
    const bool shared = alike && base < common;
    if (shared) weigh_some(0, queries_, base, common - base, 0);
    for (int r = 0; r < t_.rows; r++) weigh_rest(r, base, shared ? common : base);
  }

  // Scores the nodes where they lie, up to the furthest, then moves those of each path to their positions.
  void score_paths(int base) {
    int begin = 1 << 30, end = 0;
    for (int r = 0; r < t_.rows; r++) {
      const Sight& s = t_.sights[r];
      const View v = view(r, base);
      const int from = v.low < s.direct ? s.direct : v.low;
      if (from >= v.high) continue;
      const int first = s.direct + s.path[from - s.direct], last = s.direct + s.path[v.high - 1 - s.direct];
      begin = first < begin ? first : begin;
      end = last + 1 > end ? last + 1 : end;
    }
    if (begin >= end) return;
    const int first = begin / kBlock, blocks = (end + kBlock - 1) / kBlock - first;
    score_all(first, first + blocks, scratch_.extra, blocks * kBlock);
    for (int i = 0; i < queries_; i++)
      place_path(i, base, scratch_.extra + i * blocks * kBlock - first * kBlock);
  }

  void place_path(int query, int base, const float* by_place) {
    const Sight& s = t_.sights[query / t_.heads];
    const View v = view(query / t_.heads, base);
    for (int p = v.low < s.direct ? s.direct : v.low; p < v.high; p++)
      scores(query)[p - base] = by_place[s.direct + s.path[p - s.direct]];
  }

  // The values of a row's positions from `from` on: those at their own place, then its path.
  void weigh_rest(int row, int base, int from) {
    const Sight& s = t_.sights[row];
    const View v = view(row, base);
    const int first = row * t_.heads;
    int p = v.low > from ? v.low : from;
    if (p < v.near) {
      weigh_some(first, t_.heads, p, v.near - p, p - base);
      p = v.near;
    }
    for (; p < v.high; p++) weigh_some(first, t_.heads, s.direct + s.path[p - s.direct], 1, p - base);
  }

  // Turns a query's scores into weights under the new maximum and brings what was summed before to it.
  void update(int query, const View& v, int base) {
    if (v.low >= v.high) return;
    float* s = scores(query);
    const int first = (v.low - base) / kVec * kVec, end = v.high - base;
    Vec top = set(-INFINITY);
    for (int i = first; i < end; i += kVec) {
      const bool edge = i == first || i + kVec > end;
      Vec x = load(s + i);
      if (edge) store(s + i, x = only(x, v.low - base - i, end - i, -INFINITY));
      top = larger(top, x);
    }
    float peak = largest(top), before = scratch_.peaks[query];
    peak = before > peak ? before : peak;
    const Vec fade = exp(set(before - peak)), shift = set(-peak);
    Vec total = mul(load(scratch_.totals + query * kVec), fade);
    for (int i = first; i < end; i += kVec) {
      Vec w = exp(add(load(s + i), shift));
      store(s + i, w);
      total = add(total, w);
    }
    store(scratch_.totals + query * kVec, total);
    scratch_.peaks[query] = peak;
    for (int d = 0; d < t_.value_stride; d += kVec) store(sums(query) + d, mul(load(sums(query) + d), fade));
  }

  void finish() {
    for (int i = 0; i < queries_; i++) {
      const Vec total = set(sum(load(scratch_.totals + i * kVec)));
      float* out = t_.out + static_cast<size_t>(i / t_.heads) * t_.out_stride + i % t_.heads * t_.head_dim;
      for (int d = 0; d < t_.head_dim; d += kVec) {
        const Vec x = div(load(sums(i) + d), total);
        t_.head_dim - d < kVec ? store_some(out + d, x, t_.head_dim - d) : store(out + d, x);
      }
    }
  }

  const AttentionTask& t_;
  const Scratch scratch_;
  const int queries_;
};

inline void attend(const AttentionTask& t) { t.wide ? Attention<float>(t).run() : Attention<uint16_t>(t).run(); }

}  // namespace slipstream::SLIPSTREAM_VARIANT
