// Keys and values of every layer and slot, in memory that the caller owns and that need not be written to be valid.
//
// Keys lie in blocks of sixteen positions, [layers][slots][kv_heads][blocks][head_dim][16]; values row by row,
// [layers][slots][kv_heads][positions][value_stride]. Entries are bfloat16, or float32 when `wide`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "row_ops.h"

namespace slipstream {

struct CacheShape {
  int layers, slots, kv_heads, head_dim;
  int capacity;  // positions of a slot, a multiple of 16
  bool wide;

  int value_stride() const { return (head_dim + 15) / 16 * 16; }
  size_t width() const { return wide ? 4 : 2; }
  size_t heads() const { return static_cast<size_t>(layers) * slots * kv_heads; }
};

class Cache {
 public:
  Cache(const CacheShape& shape, void* keys, void* values)
      : shape_(shape), keys_(static_cast<uint8_t*>(keys)), values_(static_cast<uint8_t*>(values)) {}

  const CacheShape& shape() const { return shape_; }

  uint8_t* keys(int layer, int slot, int head) const {
    return keys_ + at(layer, slot, head) * shape_.capacity * shape_.head_dim * shape_.width();
  }
  uint8_t* values(int layer, int slot, int head) const {
    return values_ + at(layer, slot, head) * shape_.capacity * shape_.value_stride() * shape_.width();
  }
  // A place's key within a head's keys: the first of entries that lie 16 apart.
  uint8_t* key(int layer, int slot, int head, int place) const {
    const size_t entry = static_cast<size_t>(place / kBlock) * shape_.head_dim * kBlock + place % kBlock;
    return keys(layer, slot, head) + entry * shape_.width();
  }
  uint8_t* value(int layer, int slot, int head, int place) const {
    return values(layer, slot, head) + static_cast<size_t>(place) * shape_.value_stride() * shape_.width();
  }

  // Moves the entries at places start + path[i] to start + i; the path rises and path[i] >= i.
  void keep(int slot, int start, const int* path, int count);

 private:
  size_t at(int layer, int slot, int head) const {
    return (static_cast<size_t>(layer) * shape_.slots + slot) * shape_.kv_heads + head;
  }
  void move(int layer, int slot, int head, int to, int from);

  CacheShape shape_;
  uint8_t *keys_, *values_;
};

}  // namespace slipstream
