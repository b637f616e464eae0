#include "forward.h"

#include <algorithm>
#include <cstring>

namespace slipstream {

namespace {

constexpr int kGateColumns = 256;  // columns of the gated product that one thread takes at a time

}  // namespace

Forward::Forward(const Decoder& decoder, const Pass& pass, Cache& cache, Workspace& work, int first, int rows)
    : decoder_(decoder), shape_(decoder.shape()), pass_(pass), cache_(cache), work_(work), ops_(row_ops()),
      pool_(Pool::instance()), first_(first), rows_(rows), wide_(std::max(shape_.qkv(), 2 * shape_.mlp)),
      states_wanted_(pass.logits != nullptr) {
  const int layers = static_cast<int>(decoder.layers().size());
  for (const auto& [index, out] : pass.taps) states_wanted_ |= index < 0 || index == layers;
  place_rows();
  share_attention();
}

// Says for each row where it is written, at which position it stands and which places it sees.
void Forward::place_rows() {
  const int nodes = pass_.nodes();
  slots_.resize(rows_), places_.resize(rows_), positions_.resize(rows_), sights_.resize(rows_), paths_.resize(rows_);
  for (int row = 0; row < rows_; row++) {
    const int sequence = (first_ + row) / nodes, node = (first_ + row) % nodes;
    slots_[row] = pass_.slots[sequence];
    places_[row] = pass_.starts[sequence] + node;
    trace_path(row, sequence, node);
  }
}

// A path that is a run 0, 1, 2, .. lies in order behind the cached tokens, as a chain does.
void Forward::trace_path(int row, int sequence, int node) {
  const int start = pass_.starts[sequence];
  std::vector<int>& path = paths_[row];
  if (!pass_.parents.empty()) {
    const int* parents = pass_.parents.data() + static_cast<size_t>(sequence) * pass_.nodes();
    for (int at = node; at >= 0; at = parents[at]) path.push_back(at);
    std::reverse(path.begin(), path.end());
  }
  const bool run = path.empty() || path.back() + 1 == static_cast<int>(path.size());
  const int depth = path.empty() ? node : static_cast<int>(path.size()) - 1;
  positions_[row] = start + depth;
  const int end = start + depth + 1;
  sights_[row] = {end, run ? end : start, run ? nullptr : path.data()};
}

void Forward::share_attention() {
  const int groups = shape_.heads / shape_.kv_heads, parts = (groups + kTaskHeads - 1) / kTaskHeads;
  for (int row = 0; row < rows_;) {
    int count = 1;
    while (count < kTaskRows && row + count < rows_ && slots_[row + count] == slots_[row]) count++;
    for (int key_head = 0; key_head < shape_.kv_heads; key_head++)
      for (int part = 0; part < parts; part++) {
        const Range heads = share(groups, {part, parts});
        const int head = key_head * groups + heads.begin;
        shares_.push_back({row, count, key_head, head, heads.end - heads.begin});
      }
    row += count;
  }
}

void Forward::run(Slice slice) {
  const int layers = static_cast<int>(decoder_.layers().size());
  for (int layer = 0; layer < layers; layer++) {
    enter(layer, slice);
    project(decoder_.layers()[layer].qkv, projected(0), wide_, slice);
    rotate_and_cache(layer, slice);
    if (layer + 1 == layers && !states_wanted_) return;
    attend(layer, slice);
    feed(layer, slice);
  }
  finish(slice);
}

// Adds what the layer before left in `branch`, or embeds, and prepares the normed rows for the projection to come.
void Forward::enter(int layer, Slice slice) {
  const Layer& w = decoder_.layers()[layer];
  const Range mine = share(rows_, slice);
  for (int row = mine.begin; row < mine.end; row++) {
    if (layer == 0)
      decoder_.embed(pass_.tokens[first_ + row], residual(row));
    else
      add_branch(decoder_.layers()[layer - 1].mlp_out, row, slice);
    tap(layer, row, residual(row));
    float* normed = work_.row(slice);
    ops_.rms_norm(residual(row), w.attn_in.data(), shape_.eps, shape_.hidden, normed);
    prepare_row(w.qkv.kind(), normed, row, shape_.hidden, work_.input);
  }
  sync();
}

void Forward::add_branch(const std::vector<float>& norm, int row, Slice slice) {
  const float* added = branch(row);
  if (!norm.empty()) {
    ops_.rms_norm(added, norm.data(), shape_.eps, shape_.hidden, work_.row(slice));
    added = work_.row(slice);
  }
  ops_.add(residual(row), added, shape_.hidden);
}

void Forward::project(const Projection& projection, float* y, int stride, Slice slice) {
  int at = 0;
  for (const auto& part : projection.parts) {
    multiply(*part, work_.input, rows_, y + at, stride, slice);
    at += part->out;
  }
  sync();
}

void Forward::rotate_and_cache(int index, Slice slice) {
  const Layer& w = decoder_.layers()[index];
  const int dim = shape_.head_dim, each = shape_.heads + 2 * shape_.kv_heads, keys = shape_.heads;
  const bool wide = cache_.shape().wide;
  const Range mine = share(rows_ * each, slice);
  for (int at = mine.begin; at < mine.end; at++) {
    const int row = at / each, head = at % each;
    float* x = projected(row) + head * dim;
    if (head >= keys + shape_.kv_heads) {
      ops_.write_values(x, dim, wide, cache_.value(index, slots_[row], head - keys - shape_.kv_heads, places_[row]));
      continue;
    }
    const std::vector<float>& norm = head < keys ? w.q_norm : w.k_norm;
    if (!norm.empty()) ops_.rms_norm(x, norm.data(), shape_.eps, dim, x);
    if (w.rope >= 0) {
      const size_t angle = static_cast<size_t>(positions_[row]) * (dim / 2);
      ops_.rotate(x, pass_.angles[w.rope].cos + angle, pass_.angles[w.rope].sin + angle, dim / 2);
    }
    if (head >= keys) ops_.write_keys(x, dim, wide, cache_.key(index, slots_[row], head - keys, places_[row]));
  }
  sync();
}

void Forward::attend(int index, Slice slice) {
  const Layer& w = decoder_.layers()[index];
  const int cols = shape_.heads * shape_.head_dim;
  for (size_t i = slice.index; i < shares_.size(); i += slice.count) attend_share(shares_[i], w, index, slice);
  sync();
  prepare(w.out.kind(), inner(0, cols), cols, rows_, cols, work_.input, slice);
  sync();
  project(w.out, branch(0), shape_.hidden, slice);
}

void Forward::attend_share(const Share& part, const Layer& layer, int index, Slice slice) {
  const int slot = slots_[part.row], dim = shape_.head_dim, cols = shape_.heads * dim;
  AttentionTask task;
  task.keys = cache_.keys(index, slot, part.key_head);
  task.values = cache_.values(index, slot, part.key_head);
  task.wide = cache_.shape().wide;
  task.head_dim = dim;
  task.value_stride = cache_.shape().value_stride();
  task.window = layer.window;
  task.scale = shape_.scale;
  task.rows = part.rows;
  task.heads = part.heads;
  task.sights = sights_.data() + part.row;
  task.queries = projected(part.row) + part.head * dim;
  task.query_stride = wide_;
  task.out = inner(part.row, cols) + part.head * dim;
  task.out_stride = cols;
  task.scratch = work_.row(slice) + (shape_.hidden + 15) / 16 * 16;
  ops_.attend(task);
}

void Forward::feed(int index, Slice slice) {
  const Layer& w = decoder_.layers()[index];
  const Range mine = share(rows_, slice);
  for (int row = mine.begin; row < mine.end; row++) {
    add_branch(w.attn_out, row, slice);
    float* normed = work_.row(slice);
    ops_.rms_norm(residual(row), w.mlp_in.data(), shape_.eps, shape_.hidden, normed);
    prepare_row(w.gate_up.kind(), normed, row, shape_.hidden, work_.input);
  }
  sync();
  project(w.gate_up, projected(0), wide_, slice);
  gate(slice);
  prepare(w.down.kind(), inner(0, shape_.mlp), shape_.mlp, rows_, shape_.mlp, work_.input, slice);
  sync();
  project(w.down, branch(0), shape_.hidden, slice);
}

void Forward::gate(Slice slice) {
  const int parts = (shape_.mlp + kGateColumns - 1) / kGateColumns;
  const Range mine = share(rows_ * parts, slice);
  for (int at = mine.begin; at < mine.end; at++) {
    const int row = at / parts, column = at % parts * kGateColumns;
    const float* gates = projected(row) + column;
    const int count = std::min(kGateColumns, shape_.mlp - column);
    ops_.gate(shape_.activation, gates, gates + shape_.mlp, count, inner(row, shape_.mlp) + column);
  }
  sync();
}

void Forward::finish(Slice slice) {
  const Range mine = share(rows_, slice);
  for (int row = mine.begin; row < mine.end; row++) {
    add_branch(decoder_.layers().back().mlp_out, row, slice);
    tap(static_cast<int>(decoder_.layers().size()), row, residual(row));
    float* normed = work_.row(slice);
    ops_.rms_norm(residual(row), decoder_.norm().data(), shape_.eps, shape_.hidden, normed);
    tap(-1, row, normed);
    if (pass_.logits) prepare_row(decoder_.head().kind(), normed, row, shape_.hidden, work_.input);
  }
  if (!pass_.logits) return;
  sync();
  float* logits = pass_.logits + static_cast<size_t>(first_) * shape_.vocab;
  project(decoder_.head(), logits, shape_.vocab, slice);
  if (shape_.logit_cap <= 0) return;
  for (int row = mine.begin; row < mine.end; row++)
    ops_.cap(logits + static_cast<size_t>(row) * shape_.vocab, shape_.logit_cap, shape_.vocab);
}

void Forward::tap(int index, int row, const float* state) {
  for (const auto& [wanted, out] : pass_.taps)
    if (wanted == index)
      std::memcpy(out + static_cast<size_t>(first_ + row) * shape_.hidden, state, shape_.hidden * sizeof(float));
}

}  // namespace slipstream
