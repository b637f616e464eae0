// Attention over the cache with a softmax kept up to date span by span (Milakov and Gimelshein 1805.02867).
//
// A score's place in every sum is its key's position in the text, never its place in memory, and all rows of a task
// walk the same spans of positions: a draft scored as a tree, as a chain, in a batch or as a prompt has the same bits.
// Queries (a row's heads, row after row) share loads of keys and values; each keeps its own chain of additions. Scores
// of positions a row may not see are dropped before they meet anything, and values of such positions are not read, so
// stale entries, even NaN, cannot leak.
#pragma once

#include <cmath>

#include "attention_views.h"
#include "row_ops.h"
#include "simd.h"

namespace slipstream::SLIPSTREAM_VARIANT {

constexpr int kSpan = kAttentionSpan;
constexpr int kTogether = kParts == 1 ? 6 : 4;  // queries that share a load: as many sums as there are registers for
constexpr int kChunk = kParts == 1 ? 4 : 1;     // vectors of a value row at once
constexpr int kAhead = 4096;                    // bytes that prefetching runs ahead of keys and values

// Splits the task's scratch: [queries] of each; `extra` holds scores of draft nodes by their place in the cache.
struct Scratch {
  float *sums, *totals, *peaks, *turned, *scores, *extra;

  explicit Scratch(const AttentionTask& t) {
    const int queries = kTaskQueries;
    sums = t.scratch;
    totals = sums + queries * t.value_stride;
    peaks = totals + queries * kVec;
    turned = peaks + queries;
    scores = turned + queries * t.value_stride;
    extra = scores + queries * kSpan;
  }
};

inline void fetch(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + kAhead); }

// out[query][position] of B blocks of keys, `step` entries each; q holds the queries turned: [head_dim][Q].
template <class T, int Q, int B>
inline void score(const T* keys, size_t step, int dim, const float* q, float scale, float* out, int stride) {
  Vec dots[Q][B];
  const auto add_number = [&](const Vec* k, const float* x) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int h = 0; h < Q; h++) {
      const Vec each = set(x[h]);
#pragma GCC unroll 8
      for (int b = 0; b < B; b++) dots[h][b] = madd(k[b], each, dots[h][b]);
    }
  };
#pragma GCC unroll 8
  for (int h = 0; h < Q; h++)
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) dots[h][b] = set(0);
  if constexpr (sizeof(T) == 2) {
    for (int d = 0; d < dim; d += 2) {
      Vec first[B], second[B];
#pragma GCC unroll 8
      for (int b = 0; b < B; b++) {
        const T* from = keys + b * step + static_cast<size_t>(d) * kBlock;
        fetch(from);
        const Pairs pairs = load_pairs(from);
        first[b] = pairs.first, second[b] = pairs.second;
      }
      add_number(first, q + d * Q);
      add_number(second, q + (d + 1) * Q);
    }
  } else {
    for (int d = 0; d < dim; d++) {
      Vec k[B];
#pragma GCC unroll 8
      for (int b = 0; b < B; b++) {
        const T* from = keys + b * step + static_cast<size_t>(d) * kBlock;
        fetch(from);
        k[b] = load(from);
      }
      add_number(k, q + d * Q);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < Q; h++)
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) store(out + h * stride + b * kBlock, mul(dots[h][b], set(scale)));
}

template <class T, int Q>
inline void score_blocks(const T* keys, size_t step, int dim, int blocks, const float* q, float scale, float* out, int stride) {
  constexpr int kAtOnce = kParts > 1 ? 1 : Q > 3 ? 2 : 4;
  int b = 0;
  for (; b + kAtOnce <= blocks; b += kAtOnce)
    score<T, Q, kAtOnce>(keys + b * step, step, dim, q, scale, out + b * kBlock, stride);
  for (; b < blocks; b++) score<T, Q, 1>(keys + b * step, step, dim, q, scale, out + b * kBlock, stride);
}

// sums[query] += weights[query][i] * the value of place + i, one after the other, for P vectors from `d` on.
template <class T, int Q, int P>
inline void weigh_part(const T* values, int stride, int d, int place, int count, const float* weights, float* sums) {
  Vec acc[Q][P];
  const auto add_value = [&](const Vec* v, const float* w) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int h = 0; h < Q; h++) {
      const Vec each = set(w[h * kSpan]);
#pragma GCC unroll 8
      for (int j = 0; j < P; j++) acc[h][j] = madd(v[j], each, acc[h][j]);
    }
  };
#pragma GCC unroll 8
  for (int h = 0; h < Q; h++)
#pragma GCC unroll 8
    for (int j = 0; j < P; j++) acc[h][j] = load(sums + h * stride + d + j * kVec);
  for (int i = 0; i < count;) {
    Vec first[P], second[P];
    if constexpr (sizeof(T) == 2) {
      const T* from = values + (static_cast<size_t>((place + i) / 2) * stride + d) * 2;
#pragma GCC unroll 8
      for (int j = 0; j < P; j++) {
        fetch(from + 2 * j * kVec);
        const Pairs pairs = load_pairs(from + 2 * j * kVec);
        first[j] = pairs.first, second[j] = pairs.second;
      }
      if ((place + i) % 2 == 0) add_value(first, weights + i++);
      if (i < count) add_value(second, weights + i++);
    } else {
      const T* from = values + static_cast<size_t>(place + i) * stride + d;
#pragma GCC unroll 8
      for (int j = 0; j < P; j++) {
        fetch(from + j * kVec);
        first[j] = load(from + j * kVec);
      }
      add_value(first, weights + i++);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < Q; h++)
#pragma GCC unroll 8
    for (int j = 0; j < P; j++) store(sums + h * stride + d + j * kVec, acc[h][j]);
}

template <class T, int Q>
inline void weigh(const T* values, int stride, int place, int count, const float* weights, float* sums) {
  int d = 0;
  for (; d + kChunk * kVec <= stride; d += kChunk * kVec)
    weigh_part<T, Q, kChunk>(values, stride, d, place, count, weights, sums);
  for (; d < stride; d += kVec) weigh_part<T, Q, 1>(values, stride, d, place, count, weights, sums);
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
    each_span(t_, [&](int base) { add_span(base); });
    finish();
  }

 private:
  View view(int row, int base) const { return view_of(t_, row, base); }
  size_t step() const { return static_cast<size_t>(turned_dim()) * kBlock; }  // entries of a block of keys
  int turned_dim() const { return sizeof(T) == 2 ? (t_.head_dim + 1) / 2 * 2 : t_.head_dim; }
  const T* keys(int block) const { return static_cast<const T*>(t_.keys) + block * step(); }
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
      if (turned_dim() > t_.head_dim) to[t_.head_dim * Q + h] = 0;
    }
  }
  float* turned(int query) const { return scratch_.turned + static_cast<size_t>(query) * turned_dim(); }

  void score_all(int first_block, int end_block, float* out, int stride) {
    in_groups(queries_, [&](int first, auto count) {
      score_group(first, count, first_block, end_block - first_block, out + first * stride, stride);
    });
  }
  template <int Q>
  void score_group(int first, Count<Q>, int block, int blocks, float* out, int stride) {
    score_blocks<T, Q>(keys(block), step(), turned_dim(), blocks, turned(first), t_.scale, out, stride);
  }

  void weigh_some(int first, int count, int place, int places, int at) {
    in_groups(count, [&](int q, auto many) { weigh_group(first + q, many, place, places, at); });
  }
  template <int Q>
  void weigh_group(int query, Count<Q>, int place, int places, int at) {
    weigh<T, Q>(static_cast<const T*>(t_.values), t_.value_stride, place, places, scores(query) + at, sums(query));
  }

  void add_span(int base) {
    int common = base + kSpan;  // every row that sees the span sees base..common directly
    bool alike = true;
    for (int r = 0; r < t_.rows; r++) {
      const View v = view(r, base);
      alike &= v.low == base && v.low < v.high;
      common = v.near < common ? v.near : common;
    }
    score_span(t_, base, scratch_.scores, scratch_.extra,
               [&](int first, int end, float* out, int stride) { score_all(first, end, out, stride); });
    for (int i = 0; i < queries_; i++) update(i, view(i / t_.heads, base), base);
    const bool shared = alike && base < common;
    if (shared) weigh_some(0, queries_, base, common - base, 0);
    for (int r = 0; r < t_.rows; r++) weigh_rest(r, base, shared ? common : base);
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
    for (; p < v.high; p++) weigh_some(first, t_.heads, place_of(s, p), 1, p - base);
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
