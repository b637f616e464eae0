#include "kv_cache.h"

#include <cstring>

namespace slipstream {

void Cache::move(int layer, int slot, int head, int to, int from) {
  uint8_t *k = key(layer, slot, head, to), *old = key(layer, slot, head, from);
  for (int at = 0; at < shape_.key_stride() * kBlock * static_cast<int>(shape_.width()); at += kBlock * 4)
    std::memcpy(k + at, old + at, 4);  // a float32 entry, or a pair
  uint8_t *v = value(layer, slot, head, to), *was = value(layer, slot, head, from);
  if (shape_.wide) {
    std::memcpy(v, was, shape_.value_stride() * 4);
    return;
  }
  for (int d = 0; d < shape_.value_stride(); d++) std::memcpy(v + d * 4, was + d * 4, 2);
}

void Cache::keep(int slot, int start, const int* path, int count) {
  for (int layer = 0; layer < shape_.layers; layer++)
    for (int head = 0; head < shape_.kv_heads; head++)
      for (int i = 0; i < count; i++)
        if (path[i] != i) move(layer, slot, head, start + i, start + path[i]);
}

}  // namespace slipstream
