// A transformer decoder: packed weights in, hidden states and logits of many rows out, one parallel region per pass.
//
// Knows no tokens' meaning, no lengths and no commits: the caller says where each row stands and what it may see.
// Covers what nets/families.py can say: biases, norms of queries and keys, norms behind a block, windows, layers
// without rotation, GELU, scaled embeddings, capped logits.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "gemm.h"
#include "kv_cache.h"
#include "row_ops.h"

namespace slipstream {

// Maps of the same input whose outputs lie side by side; they share one form of activations.
struct Projection {
  std::vector<std::shared_ptr<const Matrix>> parts;

  Kind kind() const { return parts.front()->kind; }
  int out() const;
};

struct Layer {
  std::vector<float> attn_in, mlp_in;
  std::vector<float> attn_out, mlp_out, q_norm, k_norm;  // empty where the family has none
  Projection qkv, out, gate_up, down;
  int window = 0;  // 0: sees everything
  int rope = -1;   // which table of angles; -1: no rotation
};

struct DecoderShape {
  int hidden, heads, kv_heads, head_dim, mlp, vocab;
  float scale, eps, embed_scale = 1, logit_cap = 0;  // cap 0: none
  Activation activation;

  int qkv() const { return (heads + 2 * kv_heads) * head_dim; }
};

// Cosines and sines of one rotary table, [positions][head_dim / 2] float32.
struct Angles {
  const float *cos, *sin;
};

// One pass: counts[s] new entries behind starts[s] cached ones in each slot; rows are sequence after sequence.
struct Pass {
  std::vector<int64_t> tokens;  // [rows]
  std::vector<int> slots, starts, counts;
  std::vector<int> parents;  // [rows], within a sequence, -1 first; empty: chains
  std::vector<Angles> angles;
  std::vector<std::pair<int, float*>> taps;  // before which layer (their number: after the last; -1: normed), [R][H]
  float* logits = nullptr;                   // [R][vocab], or null: none wanted
  int64_t* peaks = nullptr;                  // [rows], with logits: id of the highest, the lowest on a tie; -1: not finite
  Role role = Role::decoded;                 // of all rows; of a prompt there are no logits

  int sequences() const { return static_cast<int>(slots.size()); }
  int rows() const { return static_cast<int>(tokens.size()); }
  int widest() const { return *std::max_element(counts.begin(), counts.end()); }
};

class Decoder {
 public:
  // The embedding is a table in bfloat16, or, with `set_embedding`, packed rows one part after the other: where the
  // head has the same weights, its matrix.
  Decoder(const DecoderShape& shape, const uint16_t* embedding) : shape_(shape), embedding_(embedding) {}

  const DecoderShape& shape() const { return shape_; }
  const uint16_t* embedding(int64_t token) const { return embedding_ + token * shape_.hidden; }  // bfloat16
  const std::vector<Layer>& layers() const { return layers_; }
  const Projection& head() const { return head_; }
  const std::vector<float>& norm() const { return norm_; }

  void set_embedding(Projection rows);
  int64_t ids() const { return rows_.parts.empty() ? INT64_MAX : rows_.out(); }  // tokens there are, as far as known

  // The state [hidden] that a token enters the first layer with.
  void embed(int64_t token, float* state) const;

  void add_layer(Layer layer);
  void set_head(std::vector<float> norm, Projection head);

  // Runs all layers, writing keys and values to the cache at the places behind `starts`.
  void forward(const Pass& pass, Cache& cache);

  // Normed states x [rows][hidden] -> logits [rows][vocab].
  void logits(const float* x, int rows, float* out);

 private:
  DecoderShape shape_;
  const uint16_t* embedding_;
  Projection rows_;
  std::vector<Layer> layers_;
  std::vector<float> norm_;
  Projection head_;
};

}  // namespace slipstream
