// The memory of one chunk of rows on its way through the layers, kept between passes.
#pragma once

#include <vector>

#include "decoder.h"

namespace slipstream {

constexpr int kChunkRows = 256;  // rows that go through the layers together: bounds the memory of a long prompt

struct Workspace {
  Buffer residual;   // [R][H]
  Buffer projected;  // [R][max(qkv, 2 * mlp)]
  Buffer branch;     // [R][H]: what a block adds to the residual
  Buffer inner;      // [R][max(heads * head_dim, mlp)]
  Input input;   // of the product under way, but for
  Input gated;   // the one of mlp columns, which some threads prepare while others still read the former
  std::vector<Buffer> threads;  // a row and attention's scratch, one for each thread
  std::vector<Buffer> gated_columns;  // [R][2 * kPromptBlocks * 32] of a prompt, one for each thread

  void reserve(const DecoderShape& shape, int rows, int nodes, int count, Role role);

  float* row(Slice slice) { return threads[slice.index].as<float>(); }
  float* gates(Slice slice) { return gated_columns[slice.index].as<float>(); }
};

}  // namespace slipstream
