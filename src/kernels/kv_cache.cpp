#include "kv_cache.h"

#include <cstring>

namespace slipstream {

void Cache::move(int layer, int slot, int head, int to, int from) {
  const size_t width = shape_.width();
  uint8_t *k = key(layer, slot, head, to), *old = key(layer, slot, head, from);
  for (int d = 0; d < shape_.head_dim; d++) std::memcpy(k + d * kBlock * width, old + d * kBlock * width, width);
  std::memcpy(value(layer, slot, head, to), value(layer, slot, head, from), shape_.value_stride() * width);
}

void Cache::keep(int slot, int start, const int* path, int count) {
  for (int layer = 0; layer < shape_.layers; layer++)
    for (int head = 0; head < shape_.kv_heads; head++)
      for (int i = 0; i < count; i++)
        if (path[i] != i) move(layer, slot, head, start + i, start + path[i]);
}

}  // namespace slipstream
