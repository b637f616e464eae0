// Attention over the cache with a softmax kept up to date block by block (Milakov and Gimelshein 1805.02867).
//
// A score's place in every sum is its key's position in the text, never its place in memory, and all rows of a task
// walk the same spans of positions: a draft scored as a tree, as a chain, in a batch or as a prompt has the same bits.
// Keys are multiplied sixteen positions at a time; scores of positions a row may not see are dropped before they meet
// anything, and values of such positions are not read, so stale entries, even NaN, cannot leak.
#pragma once

#include <cmath>

#include "row_ops.h"
#include "simd.h"

namespace slipstream::SLIPSTREAM_VARIANT {

constexpr int kSpan = 256;  // positions between two updates of the running maximum
// As many independent sums as there are registers for: blocks of keys, and vectors of a value row, at once.
constexpr int kAtOnce = kParts == 1 ? 2 : 1;
constexpr int kChunk = kParts == 1 ? 4 : 1;

inline int whole(int n) { return (n + kVec - 1) / kVec * kVec; }

// Splits the task's scratch. `extra` holds scores of draft nodes by their place in the cache.
struct Scratch {
  float *sums, *totals, *peaks, *scores, *extra;
  int extra_stride;

  Scratch(const AttentionTask& t, int places) {
    const int queries = kTaskRows * kTaskHeads;
    sums = t.scratch;
    totals = sums + queries * t.value_stride;
    peaks = totals + queries * kVec;
    scores = peaks + queries;
    extra = scores + kTaskHeads * kSpan;
    extra_stride = places;
  }
};

template <class T, int Q, int B>
inline void score(const T* keys, int dim, const float* q, float scale, float* out, int stride) {
  Vec dots[B][Q];
  for (int b = 0; b < B; b++)
    for (int h = 0; h < Q; h++) dots[b][h] = set(0);
  for (int d = 0; d < dim; d++) {
    Vec k[B];
    for (int b = 0; b < B; b++) k[b] = load(keys + (static_cast<size_t>(b) * dim + d) * kBlock);
    for (int h = 0; h < Q; h++) {
      const Vec x = set(q[h * dim + d]);
      for (int b = 0; b < B; b++) dots[b][h] = madd(k[b], x, dots[b][h]);
    }
  }
  for (int h = 0; h < Q; h++)
    for (int b = 0; b < B; b++) store(out + h * stride + b * kBlock, mul(dots[b][h], set(scale)));
}

// Scores of whole blocks of keys: out[h * stride + position].
template <class T, int Q>
inline void score_blocks(const T* keys, int dim, int blocks, const float* q, float scale, float* out, int stride) {
  const size_t step = static_cast<size_t>(dim) * kBlock;
  int b = 0;
  for (; b + kAtOnce <= blocks; b += kAtOnce)
    score<T, Q, kAtOnce>(keys + b * step, dim, q, scale, out + b * kBlock, stride);
  if (b < blocks) score<T, Q, 1>(keys + b * step, dim, q, scale, out + b * kBlock, stride);
}

// sums[h] += weights[h][i] * values[i], one position after the other, for `parts` vectors of the row.
template <class T, int Q, int P>
inline void weigh_part(const T* values, int stride, int count, const float* weights, float* sums) {
  Vec acc[Q][P];
  for (int h = 0; h < Q; h++)
    for (int j = 0; j < P; j++) acc[h][j] = load(sums + h * stride + j * kVec);
  for (int i = 0; i < count; i++) {
    Vec v[P];
    for (int j = 0; j < P; j++) v[j] = load(values + static_cast<size_t>(i) * stride + j * kVec);
    for (int h = 0; h < Q; h++) {
      const Vec w = set(weights[h * kSpan + i]);
      for (int j = 0; j < P; j++) acc[h][j] = madd(v[j], w, acc[h][j]);
    }
  }
  for (int h = 0; h < Q; h++)
    for (int j = 0; j < P; j++) store(sums + h * stride + j * kVec, acc[h][j]);
}

template <class T, int Q>
inline void weigh(const T* values, int stride, int count, const float* weights, float* sums) {
  int d = 0;
  for (; d + kChunk * kVec <= stride; d += kChunk * kVec)
    weigh_part<T, Q, kChunk>(values + d, stride, count, weights, sums + d);
  for (; d < stride; d += kVec) weigh_part<T, Q, 1>(values + d, stride, count, weights, sums + d);
}

// One row of a task within the span of positions that starts at `base`.
template <class T, int Q>
struct Row {
  const AttentionTask& task;
  const Scratch& scratch;
  const Sight& sight;
  int row, base, low, high;  // visible positions low..high of the span

  Row(const AttentionTask& t, const Scratch& s, int r, int start)
      : task(t), scratch(s), sight(t.sights[r]), row(r), base(start) {
    int begin = t.window > 0 && sight.end > t.window ? sight.end - t.window : 0;
    low = begin > base ? begin : base;
    high = sight.end < base + kSpan ? sight.end : base + kSpan;
  }

  const float* queries() const { return task.queries + static_cast<size_t>(row) * task.query_stride; }
  const T* keys(int block) const {
    return static_cast<const T*>(task.keys) + static_cast<size_t>(block) * task.head_dim * kBlock;
  }
  const T* values(int place) const {
    return static_cast<const T*>(task.values) + static_cast<size_t>(place) * task.value_stride;
  }

  void run() const {
    if (low >= high) return;
    const int near = high < sight.direct ? high : sight.direct;
    if (low < near) {
      const int first = low / kBlock, end = (near + kBlock - 1) / kBlock;
      score_blocks<T, Q>(keys(first), task.head_dim, end - first, queries(), task.scale,
                         scratch.scores + first * kBlock - base, kSpan);
    }
    if (high > sight.direct) score_path();
    for (int h = 0; h < Q; h++) update(h);
    const int from = low < sight.direct ? sight.direct : low;
    float* sums = scratch.sums + row * kTaskHeads * task.value_stride;
    if (low < near) weigh<T, Q>(values(low), task.value_stride, near - low, scratch.scores + low - base, sums);
    for (int p = from; p < high; p++) {
      const T* value = values(sight.direct + sight.path[p - sight.direct]);
      weigh<T, Q>(value, task.value_stride, 1, scratch.scores + p - base, sums);
    }
  }

  // Scores all nodes up to the row's own where they lie, then moves those of its path to their positions.
  void score_path() const {
    const int direct = sight.direct, from = low < direct ? direct : low;
    const int first = (direct + sight.path[from - direct]) / kBlock;
    const int end = (direct + sight.path[high - 1 - direct]) / kBlock + 1;
    score_blocks<T, Q>(keys(first), task.head_dim, end - first, queries(), task.scale, scratch.extra,
                       scratch.extra_stride);
    for (int h = 0; h < Q; h++)
      for (int p = from; p < high; p++) {
        const int place = direct + sight.path[p - direct] - first * kBlock;
        scratch.scores[h * kSpan + p - base] = scratch.extra[h * scratch.extra_stride + place];
      }
  }

  // Turns a query's scores into weights under the new maximum and brings what was summed before to it.
  void update(int h) const {
    float* s = scratch.scores + h * kSpan;
    const int at = row * kTaskHeads + h;
    const int first = (low - base) / kVec * kVec, end = high - base;
    Vec top = set(-INFINITY);
    for (int i = first; i < end; i += kVec) {
      const bool edge = i == first || i + kVec > end;
      Vec x = edge ? only(load(s + i), low - base - i, end - i, -INFINITY) : load(s + i);
      store(s + i, x);
      top = larger(top, x);
    }
    float peak = largest(top), before = scratch.peaks[at];
    peak = before > peak ? before : peak;
    const Vec fade = exp(set(before - peak)), shift = set(-peak);
    Vec total = mul(load(scratch.totals + at * kVec), fade);
    for (int i = first; i < end; i += kVec) {
      Vec w = exp(add(load(s + i), shift));
      store(s + i, w);
      total = add(total, w);
    }
    store(scratch.totals + at * kVec, total);
    scratch.peaks[at] = peak;
    float* sums = scratch.sums + at * task.value_stride;
    for (int d = 0; d < task.value_stride; d += kVec) store(sums + d, mul(load(sums + d), fade));
  }
};

template <class T, int Q>
inline void attend_as(const AttentionTask& t) {
  int last = 0, places = 0;
  for (int r = 0; r < t.rows; r++) {
    const Sight& s = t.sights[r];
    last = s.end > last ? s.end : last;
    int far = s.end > s.direct ? s.path[s.end - 1 - s.direct] + 2 * kBlock : 0;
    places = far > places ? whole(far) : places;
  }
  const Scratch scratch(t, places);
  for (int r = 0; r < t.rows; r++)
    for (int h = 0; h < Q; h++) {
      const int at = r * kTaskHeads + h;
      for (int d = 0; d < t.value_stride; d += kVec) store(scratch.sums + at * t.value_stride + d, set(0));
      store(scratch.totals + at * kVec, set(0));
      scratch.peaks[at] = -INFINITY;
    }
  int shortest = last;
  for (int r = 0; r < t.rows; r++) shortest = t.sights[r].end < shortest ? t.sights[r].end : shortest;
  int start = t.window > 0 && shortest > t.window ? (shortest - t.window) / kSpan * kSpan : 0;
  for (; start < last; start += kSpan)
    for (int r = 0; r < t.rows; r++) Row<T, Q>(t, scratch, r, start).run();
  for (int r = 0; r < t.rows; r++)
    for (int h = 0; h < Q; h++) {
      const int at = r * kTaskHeads + h;
      const Vec total = set(sum(load(scratch.totals + at * kVec)));
      float* out = t.out + static_cast<size_t>(r) * t.out_stride + h * t.head_dim;
      for (int d = 0; d < t.head_dim; d += kVec) {
        const int count = t.head_dim - d < kVec ? t.head_dim - d : kVec;
        store_some(out + d, div(load(scratch.sums + at * t.value_stride + d), total), count);
      }
    }
}

template <class T>
inline void attend_heads(const AttentionTask& t) {
  switch (t.heads) {
    case 1: return attend_as<T, 1>(t);
    case 2: return attend_as<T, 2>(t);
    case 3: return attend_as<T, 3>(t);
    default: return attend_as<T, 4>(t);
  }
}

inline void attend(const AttentionTask& t) { t.wide ? attend_heads<float>(t) : attend_heads<uint16_t>(t); }

}  // namespace slipstream::SLIPSTREAM_VARIANT
