#include "row_ops.h"

#include <algorithm>

#include "attention_amx.h"
#include "cpu.h"

namespace slipstream {

#if defined(__x86_64__)
namespace {

// What avx512 has, but for attention over bfloat16 caches.
RowOps amx_ops() {
  RowOps ops = kRowOpsAvx512;
  ops.attend = [](const AttentionTask& task) { (task.wide ? kRowOpsAvx512.attend : amx_attention())(task); };
  return ops;
}

}  // namespace
#endif

const RowOps& row_ops() {
#if defined(__x86_64__)
  static const RowOps amx = amx_ops();
  if (level() == Level::amx) return amx;
#endif
  return SLIPSTREAM_AT_LEVEL(kRowOps);
}

int attention_scratch(int head_dim, int max_nodes) {
  const int padded = (head_dim + 15) / 16 * 16, places = (max_nodes + 2 * kBlock + 15) / 16 * 16;
  const int vectors = kTaskQueries * (2 * padded + 16 + 1 + kAttentionSpan + places);
  return std::max(vectors, amx_attention_scratch(head_dim, places));
}

}  // namespace slipstream
