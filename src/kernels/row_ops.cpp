#include "row_ops.h"

#include <algorithm>

#include "attention_amx.h"
#include "cpu.h"

namespace slipstream {

const RowOps& row_ops() { return SLIPSTREAM_AT_LEVEL(kRowOps); }

int attention_scratch(int head_dim, int max_nodes) {
  const int padded = (head_dim + 15) / 16 * 16, places = (max_nodes + 2 * kBlock + 15) / 16 * 16;
  const int vectors = kTaskQueries * (2 * padded + 16 + 1 + kAttentionSpan + places);
  return std::max(vectors, amx_attention_scratch(head_dim, places));
}

void attend(const AttentionTask& task) {
  static const Attend tiles = amx_attention();
  tiles && !task.wide && level() == Level::amx ? tiles(task) : row_ops().attend(task);
}

}  // namespace slipstream
