// Attention in AMX tiles, for caches in bfloat16.
#pragma once

#include "row_ops.h"

namespace slipstream {

using Attend = void (*)(const AttentionTask&);

Attend amx_attention();  // null where the compiler had no such target

// Floats of scratch for any task whose drafts lie at most so many places apart.
constexpr int amx_attention_scratch(int head_dim, int places) {
  const int chunks = (head_dim + 31) / 32, columns = (head_dim + 15) / 16;
  const int numbers = 16 * (chunks + columns + 1) + 1;              // rounded queries, sums, totals, peaks
  const int scores = kAttentionSpan + kAttentionSpan / 2 + places;  // float32; weights in bfloat16; scores of drafts
  return kTaskQueries * (numbers + scores) + kAttentionSpan / 32 * columns * 256;
}

}  // namespace slipstream
