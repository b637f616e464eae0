#include "row_ops.h"

#include "cpu.h"

namespace slipstream {

const RowOps& row_ops() { return SLIPSTREAM_AT_LEVEL(kRowOps); }

int attention_scratch(int head_dim, int max_nodes) {
  const int queries = kTaskRows * kTaskHeads, padded = (head_dim + 15) / 16 * 16;
  const int places = (max_nodes + 2 * kBlock + 15) / 16 * 16;
  return queries * (2 * padded + 16 + 1 + kAttentionSpan + places);
}

}  // namespace slipstream
