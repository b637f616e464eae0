// A decoder of odd sizes with most of what a family may have, and the same computed in float64 without any cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "decoder.h"
#include "half.h"
#include "pack.h"
#include "random.h"

namespace slipstream {

constexpr int kHidden = 70, kHeads = 6, kKvHeads = 2, kDim = 20, kMlp = 300, kVocab = 65, kLayers = 3;
constexpr int kPositions = 320;

using Doubles = std::vector<double>;

inline Doubles values_of(const Projection& projection) {
  Doubles all;
  for (const auto& part : projection.parts) {
    std::vector<float> values(static_cast<size_t>(part->out) * part->in);
    unpack(*part, values.data());
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

class TinyDecoder {
 public:
  explicit TinyDecoder(Kind kind) : kind_(kind), decoder_(shape(), embedding()) {
    for (int i = 0; i < kLayers; i++) decoder_.add_layer(layer(i));
    decoder_.set_head(norm(kHidden), {{matrix(kVocab, kHidden)}});
    for (int p = 0; p < kPositions; p++)
      for (int i = 0; i < kDim / 2; i++) {
        cos_.push_back(std::cos(p * std::pow(100.0f, -2.0f * i / kDim)));
        sin_.push_back(std::sin(p * std::pow(100.0f, -2.0f * i / kDim)));
      }
  }

  Decoder& decoder() { return decoder_; }
  Angles angles() const { return {cos_.data(), sin_.data()}; }

  // Logits after the last of these tokens.
  Doubles exact(const std::vector<int64_t>& tokens) const {
    std::vector<Doubles> states;
    for (int64_t token : tokens) {
      Doubles h(kHidden);
      for (int i = 0; i < kHidden; i++) h[i] = shape().embed_scale * float_of_bf16(decoder_.embedding(token)[i]);
      states.push_back(h);
    }
    for (const Layer& layer : decoder_.layers()) run_layer(layer, states);
    Doubles logits = times(decoder_.head(), normed(states.back(), decoder_.norm()));
    for (double& x : logits) x = shape().logit_cap * std::tanh(x / shape().logit_cap);
    return logits;
  }

 private:
  static DecoderShape shape() {
    DecoderShape s{kHidden, kHeads, kKvHeads, kDim, kMlp, kVocab, 0.25f, 1e-5f};
    s.embed_scale = 1.5f;
    s.logit_cap = 8;
    s.activation = Activation::silu;
    return s;
  }

  const uint16_t* embedding() {
    for (float x : numbers(kVocab * kHidden, 3)) embedding_.push_back(bf16_of_float(x));
    return embedding_.data();
  }

  std::vector<float> norm(int size) {
    std::vector<float> all = numbers(size, seed_ += 1000);
    for (float& x : all) x = 1 + x / 4;
    return all;
  }

  std::shared_ptr<Matrix> matrix(int out, int in) {
    std::vector<float> weights = numbers(static_cast<size_t>(out) * in, seed_ += 1000);
    for (float& x : weights) x *= 2 / std::sqrt(static_cast<float>(in));
    auto made = std::make_shared<Matrix>(make_matrix(kind_, scales_for(kind_, Source::float32), out, in, nullptr));
    pack_rows(*made, Source::float32, weights.data(), 0, out);
    return made;
  }

  // The first layer is plain; the second has a window and all norms; the third does not rotate.
  Layer layer(int index) {
    Layer made;
    made.attn_in = norm(kHidden);
    made.mlp_in = norm(kHidden);
    if (index == 1) {
      made.attn_out = norm(kHidden), made.mlp_out = norm(kHidden), made.q_norm = norm(kDim), made.k_norm = norm(kDim);
      made.window = 7;
    }
    made.rope = index == 2 ? -1 : 0;
    made.qkv = {{matrix(kHeads * kDim, kHidden), matrix(kKvHeads * kDim, kHidden), matrix(kKvHeads * kDim, kHidden)}};
    made.out = {{matrix(kHidden, kHeads * kDim)}};
    made.gate_up = {{matrix(kMlp, kHidden), matrix(kMlp, kHidden)}};
    made.down = {{matrix(kHidden, kMlp)}};
    return made;
  }

  Doubles times(const Projection& projection, const Doubles& x) const {
    Doubles& w = values_[&projection];
    if (w.empty()) w = values_of(projection);
    Doubles y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); o++)
      for (size_t i = 0; i < x.size(); i++) y[o] += w[o * x.size() + i] * x[i];
    return y;
  }

  static Doubles normed(Doubles x, const std::vector<float>& weight) {
    if (weight.empty()) return x;
    double squares = 0;
    for (double each : x) squares += each * each;
    for (size_t i = 0; i < x.size(); i++) x[i] *= weight[i] / std::sqrt(squares / x.size() + shape().eps);
    return x;
  }

  // Norms and rotates the queries and keys of one row, in place.
  void place(const Layer& layer, int position, Doubles& qkv) const {
    for (int head = 0; head < kHeads + kKvHeads; head++) {
      const auto begin = qkv.begin() + head * kDim;
      Doubles x = normed(Doubles(begin, begin + kDim), head < kHeads ? layer.q_norm : layer.k_norm);
      for (int i = 0; layer.rope >= 0 && i < kDim / 2; i++) {
        const double c = cos_[position * (kDim / 2) + i], s = sin_[position * (kDim / 2) + i];
        const double low = x[i], high = x[i + kDim / 2];
        x[i] = low * c - high * s;
        x[i + kDim / 2] = high * c + low * s;
      }
      std::copy(x.begin(), x.end(), begin);
    }
  }

  Doubles attention(const Layer& layer, const std::vector<Doubles>& qkv, int row) const {
    Doubles out;
    const int first = layer.window ? std::max(0, row + 1 - layer.window) : 0;
    for (int head = 0; head < kHeads; head++) {
      const int key_head = kHeads + head / (kHeads / kKvHeads);
      const double* q = &qkv[row][head * kDim];
      Doubles sum(kDim);
      double total = 0;
      for (int p = first; p <= row; p++) {
        const double *k = &qkv[p][key_head * kDim], *v = k + kKvHeads * kDim;
        double dot = 0;
        for (int i = 0; i < kDim; i++) dot += q[i] * k[i];
        const double weight = std::exp(dot * shape().scale);
        for (int i = 0; i < kDim; i++) sum[i] += weight * v[i];
        total += weight;
      }
      for (double each : sum) out.push_back(each / total);
    }
    return out;
  }

  void run_layer(const Layer& layer, std::vector<Doubles>& states) const {
    std::vector<Doubles> qkv;
    for (const Doubles& h : states) qkv.push_back(times(layer.qkv, normed(h, layer.attn_in)));
    for (size_t row = 0; row < states.size(); row++) place(layer, static_cast<int>(row), qkv[row]);
    for (size_t row = 0; row < states.size(); row++) {
      add(states[row], normed(times(layer.out, attention(layer, qkv, static_cast<int>(row))), layer.attn_out));
      const Doubles both = times(layer.gate_up, normed(states[row], layer.mlp_in));
      Doubles inner(kMlp);
      for (int i = 0; i < kMlp; i++) inner[i] = both[i] / (1 + std::exp(-both[i])) * both[kMlp + i];
      add(states[row], normed(times(layer.down, inner), layer.mlp_out));
    }
  }

  static void add(Doubles& h, const Doubles& x) {
    for (size_t i = 0; i < h.size(); i++) h[i] += x[i];
  }

  Kind kind_;
  uint32_t seed_ = 0;
  std::vector<uint16_t> embedding_;
  Decoder decoder_;
  std::vector<float> cos_, sin_;
  mutable std::map<const Projection*, Doubles> values_;
};

}  // namespace slipstream
