// What rows of an attention task see of the spans and parts of a text.
//
// Only forced-inline functions: this file is compiled for several instruction sets.
#pragma once

#include "layout.h"
#include "row_ops.h"

namespace slipstream {

// Positions low .. high that a row sees; those below near lie at their own place.
struct View {
  int low, near, high;
};

// Of the span from position `base` on.
SLIPSTREAM_INLINE View view_of(const AttentionTask& t, int row, int base) {
  const Sight& s = t.sights[row];
  const int begin = t.window > 0 && s.end > t.window ? s.end - t.window : 0;
  const int low = begin > base ? begin : base, high = s.end < base + kAttentionSpan ? s.end : base + kAttentionSpan;
  return {low, high < s.direct ? high : s.direct, high};
}

// Where a position that a row sees lies.
SLIPSTREAM_INLINE int place_of(const Sight& s, int position) {
  return position < s.direct ? position : s.direct + s.path[position - s.direct];
}

// Positions that any row sees.
SLIPSTREAM_INLINE int end_of(const AttentionTask& t) {
  int end = 0;
  for (int r = 0; r < t.rows; r++) end = t.sights[r].end > end ? t.sights[r].end : end;
  return end;
}

// Calls work(base) for every span that any row sees something of.
template <class Work>
SLIPSTREAM_INLINE void each_span(const AttentionTask& t, const Work& work) {
  const int last = end_of(t);
  int shortest = last;
  for (int r = 0; r < t.rows; r++) shortest = t.sights[r].end < shortest ? t.sights[r].end : shortest;
  int base = t.window > 0 && shortest > t.window ? (shortest - t.window) / kAttentionSpan * kAttentionSpan : 0;
  for (; base < last; base += kAttentionSpan) work(base);
}

// From the first to the last of some positions or places.
struct Reach {
  int begin = 1 << 30, end = 0;

  void include(int first, int last) {
    begin = first < begin ? first : begin;
    end = last > end ? last : end;
  }
};

// Scores of all queries, [query][kAttentionSpan], with what they see of a span: positions at their own place, and nodes of
// paths where they lie, up to the furthest, in `extra`; those then move to their positions. score_blocks(first, end, out, stride)
// scores blocks of keys.
template <class ScoreBlocks>
SLIPSTREAM_INLINE void score_span(const AttentionTask& t, int base, float* scores, float* extra,
                                  const ScoreBlocks& score_blocks) {
  Reach direct, nodes;
  for (int r = 0; r < t.rows; r++) {
    const Sight& s = t.sights[r];
    const View v = view_of(t, r, base);
    direct.include(v.low, v.near);
    const int from = v.low < s.direct ? s.direct : v.low;
    if (from < v.high) nodes.include(place_of(s, from), place_of(s, v.high - 1) + 1);
  }
  if (direct.begin < direct.end) {
    const int first = direct.begin / kBlock;
    score_blocks(first, (direct.end + kBlock - 1) / kBlock, scores + first * kBlock - base, kAttentionSpan);
  }
  if (nodes.begin >= nodes.end) return;
  const int first = nodes.begin / kBlock, end = (nodes.end + kBlock - 1) / kBlock, stride = (end - first) * kBlock;
  score_blocks(first, end, extra, stride);
  for (int q = 0; q < t.rows * t.heads; q++) {
    const Sight& s = t.sights[q / t.heads];
    const View v = view_of(t, q / t.heads, base);
    for (int p = v.low < s.direct ? s.direct : v.low; p < v.high; p++)
      scores[q * kAttentionSpan + p - base] = extra[q * stride + place_of(s, p) - first * kBlock];
  }
}

}  // namespace slipstream
