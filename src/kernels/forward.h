// One chunk of rows through all layers, inside a parallel region: every thread runs it with its own slice.
#pragma once

#include <vector>

#include "pool.h"
#include "workspace.h"

namespace slipstream {

// A few rows of one sequence, one key head and the query heads of one attention task.
struct Share {
  int row, rows, key_head, head, heads;
};

class Forward {
 public:
  // Rows first .. first + rows of the pass.
  Forward(const Decoder& decoder, const Pass& pass, Cache& cache, Workspace& work, int first, int rows);

  void run(Slice slice);
  void tell_peaks();  // once all threads have run

 private:
  void place_rows();
  void place_row(int row, int sequence, int begin, int node);
  void share_attention();
  void share_heads(int row, int count, Range heads);

  void enter(int layer, Slice slice);
  void add_branch(const std::vector<float>& norm, int row, Slice slice);
  void attend(int layer, Slice slice);
  void rotate_and_cache(int layer, Slice slice);
  void attend_share(const Share& share, const Layer& layer, int index, Slice slice);
  void feed(int layer, Slice slice);
  void multiply_gated(const Layer& layer, Slice slice);
  void gate(Kind kind, Range groups);
  void read_gated(const Layer& layer, Slice slice);
  void read_piece(const Layer& layer, Range groups, Slice slice);
  void finish(Slice slice);
  void read_head(Slice slice);
  void settle(float* logits, Range columns, Slice slice);
  void project(const Projection& projection, const Input& input, float* y, int stride, Slice slice,
               const Projection* next = nullptr);
  Kind form(const Projection& projection) const { return form_of(projection.kind(), pass_.role); }
  void tap(int index, int row, const float* state);
  void sync() { pool_.barrier(); }

  float* residual(int row) { return work_.residual.as<float>() + static_cast<size_t>(row) * shape_.hidden; }
  float* branch(int row) { return work_.branch.as<float>() + static_cast<size_t>(row) * shape_.hidden; }
  float* projected(int row) { return work_.projected.as<float>() + static_cast<size_t>(row) * wide_; }
  float* inner(int row, int cols) { return work_.inner.as<float>() + static_cast<size_t>(row) * cols; }

  const Decoder& decoder_;
  const DecoderShape& shape_;
  const Pass& pass_;
  Cache& cache_;
  Workspace& work_;
  const RowOps& ops_;
  Pool& pool_;
  const int first_, rows_;
  int wide_;  // stride of `projected`
  bool states_wanted_;
  std::vector<int> slots_, places_, positions_;  // of each row
  std::vector<Sight> sights_;
  std::vector<std::vector<int>> paths_;
  std::vector<Share> shares_;
  std::vector<Peak> peaks_;  // [threads][rows] of the logits a thread has computed; empty: none wanted
  bool whole_groups_ = true;  // every share of attention gives whole groups of its output
};

}  // namespace slipstream
