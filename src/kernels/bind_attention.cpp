// Pieces of the decoder by themselves, for tests: keys and values are written, queries attended and peaks found as it
// does it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "bind_decoder.h"
#include "gemm.h"
#include "kv_cache.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using Address = uintptr_t;

// Writes keys and values [heads][head_dim] of one place.
void write(Cache& cache, int layer, int slot, int place, Address keys, Address values) {
  const CacheShape& s = cache.shape();
  const RowOps& ops = row_ops();
  for (int head = 0; head < s.kv_heads; head++) {
    const float* k = reinterpret_cast<const float*>(keys) + head * s.head_dim;
    const float* v = reinterpret_cast<const float*>(values) + head * s.head_dim;
    ops.write_keys(k, s.head_dim, s.wide, cache.key(layer, slot, head, place));
    ops.write_values(v, s.head_dim, s.wide, cache.value(layer, slot, head, place));
  }
}

// Rows of queries [row][heads][head_dim], each behind `start` cached tokens with a path of node indices after them.
void attend(const Cache& cache, int layer, int slot, int start, const std::vector<std::vector<int>>& paths, int heads,
            int window, float scale, Address queries, Address out) {
  const CacheShape& s = cache.shape();
  const int rows = static_cast<int>(paths.size()), groups = heads / s.kv_heads, stride = heads * s.head_dim;
  if (rows * groups > kTaskQueries || groups > kTaskHeads) throw std::invalid_argument("more rows or heads than one task takes");
  int furthest = 0;
  std::vector<Sight> sights;
  for (const std::vector<int>& path : paths) {
    sights.push_back({start + static_cast<int>(path.size()), start, path.data()});
    for (int node : path) furthest = std::max(furthest, node + 1);
  }
  if (start + furthest > s.capacity) throw std::invalid_argument("a path leads outside the cache");
  Buffer scratch(attention_scratch(s.head_dim, furthest) * sizeof(float));
  for (int head = 0; head < s.kv_heads; head++) {
    const size_t first = static_cast<size_t>(head) * groups * s.head_dim;
    row_ops().attend({cache.keys(layer, slot, head), cache.values(layer, slot, head), s.wide, s.head_dim,
                      s.value_stride(), window, scale, rows, groups, sights.data(),
                      reinterpret_cast<const float*>(queries) + first, stride,
                      reinterpret_cast<float*>(out) + first, stride, scratch.as<float>()});
  }
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("write_entry", &write);
  m.def("attend", &attend);
  m.def("peak", [](Address x, int cols) {
    const Peak found = row_ops().peak(reinterpret_cast<const float*>(x), cols);
    return std::pair<float, int>{found.value, found.at};
  });
}

}  // namespace slipstream
