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

// Calls work(base) for every span that any row sees something of.
template <class Work>
SLIPSTREAM_INLINE void each_span(const AttentionTask& t, const Work& work) {
  int shortest = t.sights[0].end, last = 0;
  for (int r = 0; r < t.rows; r++) {
    const int end = t.sights[r].end;
    shortest = end < shortest ? end : shortest;
    last = end > last ? end : last;
  }
  int base = t.window > 0 && shortest > t.window ? (shortest - t.window) / kAttentionSpan * kAttentionSpan : 0;
  for (; base < last; base += kAttentionSpan) work(base);
}

// Places begin .. end that hold the nodes of paths whose positions are in a span, up to the furthest.
struct Nodes {
  int begin = 1 << 30, end = 0;
};

SLIPSTREAM_INLINE Nodes nodes_of(const AttentionTask& t, int base) {
  Nodes nodes;
  for (int r = 0; r < t.rows; r++) {
    const Sight& s = t.sights[r];
    const View v = view_of(t, r, base);
    const int from = v.low < s.direct ? s.direct : v.low;
    if (from >= v.high) continue;
    const int first = place_of(s, from), last = place_of(s, v.high - 1);
    nodes.begin = first < nodes.begin ? first : nodes.begin;
    nodes.end = last + 1 > nodes.end ? last + 1 : nodes.end;
  }
  return nodes;
}

// Moves a query's scores of nodes, by their place, to their positions in the span.
SLIPSTREAM_INLINE void place_path(const Sight& s, const View& v, int base, const float* by_place, float* scores) {
  for (int p = v.low < s.direct ? s.direct : v.low; p < v.high; p++) scores[p - base] = by_place[place_of(s, p)];
}

}  // namespace slipstream
