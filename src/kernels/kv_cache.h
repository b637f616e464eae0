// Keys and values of every layer and slot, in memory that the caller owns and that need not be written to be valid.
//
// Keys lie in blocks of sixteen positions, values position by position. Entries are float32 when `wide`,
//   keys    [layers][slots][kv_heads][blocks][head_dim][16]
//   values  [layers][slots][kv_heads][positions][value_stride]
// or else bfloat16, in the pairs that tiles multiply and that widen to float32 with a shift and a mask,
//   keys    [layers][slots][kv_heads][blocks][head_dim, two by two][16][2]
//   values  [layers][slots][kv_heads][positions, two by two][value_stride][2]
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
  int key_stride() const { return wide ? head_dim : (head_dim + 1) / 2 * 2; }  // entries of a position's key
  size_t width() const { return wide ? 4 : 2; }
  size_t heads() const { return static_cast<size_t>(layers) * slots * kv_heads; }
};

class Cache {
 public:
  Cache(const CacheShape& shape, void* keys, void* values)
      : shape_(shape), keys_(static_cast<uint8_t*>(keys)), values_(static_cast<uint8_t*>(values)) {}

  const CacheShape& shape() const { return shape_; }

  uint8_t* keys(int layer, int slot, int head) const {
    return keys_ + at(layer, slot, head) * shape_.capacity * shape_.key_stride() * shape_.width();
  }
  uint8_t* values(int layer, int slot, int head) const {
    return values_ + at(layer, slot, head) * shape_.capacity * shape_.value_stride() * shape_.width();
  }
  // A place's first entry within a head's keys or values: where RowOps writes.
  uint8_t* key(int layer, int slot, int head, int place) const {
    const size_t block = static_cast<size_t>(place / kBlock) * shape_.key_stride() * kBlock;
    return keys(layer, slot, head) + (block + place % kBlock * (shape_.wide ? 1 : 2)) * shape_.width();
  }
  uint8_t* value(int layer, int slot, int head, int place) const {
    const size_t stride = shape_.value_stride();
    const size_t entry = shape_.wide ? place * stride : place / 2 * 2 * stride + place % 2;
    return values(layer, slot, head) + entry * shape_.width();
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
