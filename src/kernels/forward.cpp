#include "forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "multiply.h"

namespace slipstream {

namespace {

constexpr int kTasksForEach = 4;  // tasks of attention for each thread that share it out well enough

}  // namespace

Forward::Forward(const Decoder& decoder, const Pass& pass, Cache& cache, Workspace& work, int first, int rows)
    : decoder_(decoder), shape_(decoder.shape()), pass_(pass), cache_(cache), work_(work), ops_(row_ops()),
      pool_(Pool::instance()), first_(first), rows_(rows), wide_(std::max(shape_.qkv(), 2 * shape_.mlp)),
      states_wanted_(pass.logits != nullptr) {
  const int layers = static_cast<int>(decoder.layers().size());
  for (const auto& [index, out] : pass.taps) states_wanted_ |= index < 0 || index == layers;
  if (pass.peaks) peaks_.assign(static_cast<size_t>(pool_.threads()) * rows, {-HUGE_VALF, 0});
  place_rows();
  share_attention();
}

// Says for each row where it is written, at which position it stands and which places it sees.
void Forward::place_rows() {
  slots_.resize(rows_), places_.resize(rows_), positions_.resize(rows_), sights_.resize(rows_), paths_.resize(rows_);
  int begin = 0;
  for (int sequence = 0; sequence < pass_.sequences(); begin += pass_.counts[sequence++]) {
    const int from = std::max(begin, first_), end = std::min(begin + pass_.counts[sequence], first_ + rows_);
    for (int at = from; at < end; at++) place_row(at - first_, sequence, begin, at - begin);
  }
}

// A path that is a run 0, 1, 2, .. lies in order behind the cached tokens, as a chain does.
void Forward::place_row(int row, int sequence, int begin, int node) {
  const int start = pass_.starts[sequence];
  std::vector<int>& path = paths_[row];
  if (!pass_.parents.empty()) {
    for (int at = node; at >= 0; at = pass_.parents[begin + at]) path.push_back(at);
    std::reverse(path.begin(), path.end());
  }
  const bool run = path.empty() || path.back() + 1 == static_cast<int>(path.size());
  const int depth = path.empty() ? node : static_cast<int>(path.size()) - 1;
  slots_[row] = pass_.slots[sequence];
  places_[row] = start + node;
  positions_[row] = start + depth;
  const int end = start + depth + 1;
  sights_[row] = {end, run ? end : start, run ? nullptr : path.data()};
}

// Query heads of a key head stay together; where that leaves threads without work, each gets its part of the heads.
void Forward::share_attention() {
  const int most = kTaskQueries / std::min(shape_.heads / shape_.kv_heads, kTaskHeads);  // rows of a task
  const int tasks = (rows_ + most - 1) / most * shape_.kv_heads;
  const int parts = tasks < kTasksForEach * pool_.threads() ? pool_.threads() : 1;
  for (int part = 0; part < parts; part++)
    for (int row = 0, count; row < rows_; row += count) {
      count = 1;
      while (count < most && row + count < rows_ && slots_[row + count] == slots_[row]) count++;
      share_heads(row, count, share(shape_.heads, {part, parts}));
    }
}

void Forward::share_heads(int row, int count, Range mine) {
  const int groups = shape_.heads / shape_.kv_heads;
  for (int head = mine.begin, heads; head < mine.end; head += heads) {
    heads = std::min({mine.end - head, groups - head % groups, kTaskHeads});
    const int begin = head * shape_.head_dim, end = begin + heads * shape_.head_dim;
    whole_groups_ &= begin % kGroup == 0 && (end % kGroup == 0 || head + heads == shape_.heads);
    shares_.push_back({row, count, head / groups, head, heads});
  }
}

void Forward::run(Slice slice) {
  const int layers = static_cast<int>(decoder_.layers().size());
  for (int layer = 0; layer < layers; layer++) {
    enter(layer, slice);
    project(decoder_.layers()[layer].qkv, work_.input, projected(0), wide_, slice, &decoder_.layers()[layer].out);
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
    prepare_row(form(w.qkv), normed, row, shape_.hidden, work_.input);
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

// `next`: what is multiplied after this; its beginning is fetched while threads wait for each other.
void Forward::project(const Projection& projection, const Input& input, float* y, int stride, Slice slice,
                      const Projection* next) {
  int at = 0;
  for (const auto& part : projection.parts) {
    multiply(*part, input, rows_, y + at, stride, pass_.role, slice);
    at += part->out;
  }
  if (next && !next->parts.empty()) fetch(*next->parts.front(), slice);
  sync();
}

void Forward::rotate_and_cache(int index, Slice slice) {
  const Layer& w = decoder_.layers()[index];
  const int dim = shape_.head_dim, each = shape_.heads + 2 * shape_.kv_heads, keys = shape_.heads;
  const bool wide = cache_.shape().wide;
  const Range mine = share(rows_ * each, slice);  // head after head: neighbours' entries share cache lines
  for (int at = mine.begin; at < mine.end; at++) {
    const int row = at % rows_, head = at / rows_;
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
  const int cols = shape_.heads * shape_.head_dim, shares = static_cast<int>(shares_.size());
  for (Tasks tasks(shares, 1, slice); tasks.next();)
    for (int i = tasks.now().begin; i < tasks.now().end; i++) attend_share(shares_[i], w, index, slice);
  sync();
  if (!whole_groups_) {
    prepare(form(w.out), inner(0, cols), cols, rows_, cols, work_.input, slice);
    sync();
  }
  project(w.out, work_.input, branch(0), shape_.hidden, slice, &w.gate_up);
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
  const Range groups{part.head * dim / kGroup, ((part.head + part.heads) * dim + kGroup - 1) / kGroup};
  for (int row = part.row; whole_groups_ && row < part.row + part.rows; row++)
    prepare_groups(form(layer.out), inner(row, cols), row, cols, groups, work_.input);
}

void Forward::feed(int index, Slice slice) {
  const Layer& w = decoder_.layers()[index];
  const Range mine = share(rows_, slice);
  for (int row = mine.begin; row < mine.end; row++) {
    add_branch(w.attn_out, row, slice);
    float* normed = work_.row(slice);
    ops_.rms_norm(residual(row), w.mlp_in.data(), shape_.eps, shape_.hidden, normed);
    prepare_row(form(w.gate_up), normed, row, shape_.hidden, work_.input);
  }
  sync();
  if (pass_.role == Role::prompt && shape_.mlp % kColumns == 0)
    read_gated(w, slice);
  else
    multiply_gated(w, slice);
  fetch(*w.down.parts.front(), slice);
  sync();
  const bool last = index + 1 == static_cast<int>(decoder_.layers().size());
  project(w.down, work_.gated, branch(0), shape_.hidden, slice,
          last ? &decoder_.head() : &decoder_.layers()[index + 1].qkv);
}

// Gates columns as soon as they are multiplied, where blocks end with the gates.
void Forward::multiply_gated(const Layer& w, Slice slice) {
  const auto& parts = w.gate_up.parts;
  const bool apart = shape_.mlp % kColumns;
  if (apart) project(w.gate_up, work_.input, projected(0), wide_, slice);
  const bool one = parts.size() == 1;
  const int ups = one ? shape_.mlp / kColumns : 0;  // block of the first column that is multiplied with a gate
  float* up = projected(0) + (one ? 0 : shape_.mlp);
  for (Tasks tasks((shape_.mlp + kGroup - 1) / kGroup, 1, slice); tasks.next();) {
    const Range now = tasks.now();
    if (!apart) {
      multiply_blocks(*parts.front(), work_.input, rows_, projected(0), wide_, now);
      multiply_blocks(*parts.back(), work_.input, rows_, up, wide_, {ups + now.begin, ups + now.end});
    }
    gate(form(w.down), now);
  }
}

// Multiplies and gates a few columns at a time, in memory that stays in the cache.
void Forward::read_gated(const Layer& w, Slice slice) {
  const int groups = shape_.mlp / kGroup;
  for (Tasks tasks((groups + kPromptBlocks - 1) / kPromptBlocks, 1, slice); tasks.next();)
    for (int piece = tasks.now().begin; piece < tasks.now().end; piece++)
      read_piece(w, {piece * kPromptBlocks, std::min((piece + 1) * kPromptBlocks, groups)}, slice);
}

void Forward::read_piece(const Layer& w, Range now, Slice slice) {
  const auto& parts = w.gate_up.parts;
  const int ups = parts.size() == 1 ? shape_.mlp / kColumns : 0, stride = 2 * kPromptBlocks * kGroup;
  const ptrdiff_t before = static_cast<ptrdiff_t>(now.begin) * kColumns;  // columns that the memory lacks
  float *gates = work_.gates(slice) - before, *up = gates + stride / 2;
  multiply_prompt(*parts.front(), work_.input, rows_, gates, stride, now);
  multiply_prompt(*parts.back(), work_.input, rows_, up - ups * kColumns, stride, {ups + now.begin, ups + now.end});
  for (int row = 0; row < rows_; row++, gates += stride, up += stride) {
    ops_.gate(shape_.activation, gates + before, up + before, (now.end - now.begin) * kGroup, gates + before);
    prepare_groups(form(w.down), gates, row, shape_.mlp, now, work_.gated);
  }
}

void Forward::gate(Kind kind, Range groups) {
  const int column = groups.begin * kGroup, count = std::min(groups.end * kGroup, shape_.mlp) - column;
  for (int row = 0; row < rows_; row++) {
    const float* gates = projected(row) + column;
    ops_.gate(shape_.activation, gates, gates + shape_.mlp, count, inner(row, shape_.mlp) + column);
    prepare_groups(kind, inner(row, shape_.mlp), row, shape_.mlp, groups, work_.gated);
  }
}

void Forward::tap(int index, int row, const float* state) {
  for (const auto& [wanted, out] : pass_.taps)
    if (wanted == index)
      std::memcpy(out + static_cast<size_t>(first_ + row) * shape_.hidden, state, shape_.hidden * sizeof(float));
}

}  // namespace slipstream
