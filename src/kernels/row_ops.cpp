#include "row_ops.h"

#include "cpu.h"

namespace slipstream {

const RowOps& row_ops() {
#if defined(__x86_64__)
  Level now = level();
  if (now >= Level::avx512) return kRowOpsAvx512;
  if (now >= Level::avx2) return kRowOpsAvx2;
#endif
  return kRowOpsPortable;  // on aarch64 its vectors are NEON's
}

int attention_scratch(int head_dim, int max_nodes) {
  const int queries = kTaskRows * kTaskHeads, padded = (head_dim + 15) / 16 * 16;
  const int places = (max_nodes + 2 * kBlock + 15) / 16 * 16;
  return queries * (2 * padded + 16 + 1 + kAttentionSpan + places);
}

}  // namespace slipstream
