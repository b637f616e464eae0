#include "decoder.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "forward.h"
#include "multiply.h"
#include "pack.h"

namespace slipstream {

namespace {

// One pass at a time: the pool runs one region at a time anyway, and so they share their memory.
std::mutex busy;
Workspace workspace;

void check(const Projection& projection, int out, int in, const char* name) {
  if (projection.parts.empty() || projection.out() != out)
    throw std::invalid_argument(std::string(name) + " must have " + std::to_string(out) + " outputs");
  for (const auto& part : projection.parts) {
    if (part->in != in) throw std::invalid_argument(std::string(name) + " must have " + std::to_string(in) + " inputs");
    if (eight_bit_activations(part->kind) != eight_bit_activations(projection.kind()))
      throw std::invalid_argument(std::string(name) + ": its parts want their activations in different forms");
  }
}

void check(const std::vector<float>& norm, int size, bool optional, const char* name) {
  if (norm.empty() ? !optional : static_cast<int>(norm.size()) != size)
    throw std::invalid_argument(std::string(name) + " must have " + std::to_string(size) + " weights");
}

void multiply_all(const Projection& head, const Input& input, int rows, float* out, int stride, Slice slice) {
  int at = 0;
  for (const auto& part : head.parts) {
    multiply(*part, input, rows, out + at, stride, Role::decoded, slice);
    at += part->out;
  }
}

}  // namespace

int Projection::out() const {
  int total = 0;
  for (const auto& part : parts) total += part->out;
  return total;
}

void Decoder::set_embedding(Projection rows) {
  for (const auto& part : rows.parts)
    if (part->in != shape_.hidden) throw std::invalid_argument("the embedding's rows must have the hidden size");
  rows_ = std::move(rows);
}

void Decoder::embed(int64_t token, float* state) const {
  if (rows_.parts.empty()) {
    row_ops().embed(embedding(token), shape_.hidden, shape_.embed_scale, state);
    return;
  }
  size_t part = 0;
  while (token >= rows_.parts[part]->out) token -= rows_.parts[part++]->out;
  unpack_row(*rows_.parts[part], static_cast<int>(token), state);
  if (shape_.embed_scale != 1)
    for (int i = 0; i < shape_.hidden; i++) state[i] *= shape_.embed_scale;
}

void Decoder::add_layer(Layer layer) {
  const DecoderShape& s = shape_;
  if (s.head_dim > kMaxHeadDim || s.head_dim % 2 || s.heads % s.kv_heads)
    throw std::invalid_argument("head_dim must be even and at most 512, heads a multiple of kv_heads");
  check(layer.attn_in, s.hidden, false, "attn_in");
  check(layer.mlp_in, s.hidden, false, "mlp_in");
  check(layer.attn_out, s.hidden, true, "attn_out");
  check(layer.mlp_out, s.hidden, true, "mlp_out");
  check(layer.q_norm, s.head_dim, true, "q_norm");
  check(layer.k_norm, s.head_dim, true, "k_norm");
  check(layer.qkv, s.qkv(), s.hidden, "qkv");
  check(layer.out, s.hidden, s.heads * s.head_dim, "out");
  check(layer.gate_up, 2 * s.mlp, s.hidden, "gate_up");
  check(layer.down, s.hidden, s.mlp, "down");
  layers_.push_back(std::move(layer));
}

void Decoder::set_head(std::vector<float> norm, Projection head) {
  check(norm, shape_.hidden, false, "norm");
  check(head, shape_.vocab, shape_.hidden, "head");
  norm_ = std::move(norm);
  head_ = std::move(head);
}

void Decoder::forward(const Pass& pass, Cache& cache) {
  std::lock_guard<std::mutex> lock(busy);
  for (int first = 0; first < pass.rows(); first += kChunkRows) {
    const int rows = std::min(kChunkRows, pass.rows() - first);
    workspace.reserve(shape_, rows, pass.widest(), Pool::instance().threads(), pass.role);
    Forward chunk(*this, pass, cache, workspace, first, rows);
    Pool::instance().run([&](Slice slice) { chunk.run(slice); });
    chunk.tell_peaks();
  }
}

void Decoder::logits(const float* x, int rows, float* out) {
  std::lock_guard<std::mutex> lock(busy);
  const RowOps& ops = row_ops();
  Input& input = workspace.input;
  for (int first = 0; first < rows; first += kChunkRows) {
    const int count = std::min(kChunkRows, rows - first);
    const float* from = x + static_cast<size_t>(first) * shape_.hidden;
    float* to = out + static_cast<size_t>(first) * shape_.vocab;
    input.reserve(count, shape_.hidden);
    Pool::instance().run([&](Slice slice) {
      prepare(head_.kind(), from, shape_.hidden, count, shape_.hidden, input, slice);
      Pool::instance().barrier();
      multiply_all(head_, input, count, to, shape_.vocab, slice);
      if (shape_.logit_cap <= 0) return;
      Pool::instance().barrier();
      const Range mine = share(count, slice);
      for (int r = mine.begin; r < mine.end; r++)
        ops.cap(to + static_cast<size_t>(r) * shape_.vocab, shape_.logit_cap, shape_.vocab);
    });
  }
}

void Workspace::reserve(const DecoderShape& s, int rows, int nodes, int count, Role role) {
  const size_t r = static_cast<size_t>(rows) * sizeof(float);
  residual.reserve(r * s.hidden);
  branch.reserve(r * s.hidden);
  projected.reserve(r * std::max(s.qkv(), 2 * s.mlp));
  const int queries = s.heads * s.head_dim;
  inner.reserve(r * std::max(queries, s.mlp));
  input.reserve(rows, std::max(queries, s.hidden));
  gated.reserve(rows, s.mlp);
  if (static_cast<int>(threads.size()) < count) {
    threads.resize(count);
    gated_columns.resize(count);
  }
  const size_t own = s.hidden + 16 + attention_scratch(s.head_dim, nodes);
  for (Buffer& buffer : threads) buffer.reserve(own * sizeof(float));
  for (Buffer& buffer : gated_columns) buffer.reserve(role == Role::prompt ? r * 2 * kPromptBlocks * kGroup : 0);
}

}  // namespace slipstream
