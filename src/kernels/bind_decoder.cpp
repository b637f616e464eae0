// What Python sees of the decoder. Weights are handed over as packed matrices and lists of norms; hidden states, logits
// and the cache cross as addresses of contiguous memory, which the Python side has checked and keeps alive.
#include "bind_decoder.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "decoder.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using Parts = std::vector<std::shared_ptr<Matrix>>;
using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

Projection projection(const Parts& parts) {
  Projection made;
  made.parts.assign(parts.begin(), parts.end());
  return made;
}

std::vector<float> taken(nb::dict& from, const char* key) {
  return from.contains(key) ? nb::cast<std::vector<float>>(from[key]) : std::vector<float>{};
}

void add_layer(Decoder& decoder, nb::dict norms, const Parts& qkv, const Parts& out, const Parts& gate_up,
               const Parts& down, int window, int rope) {
  Layer layer;
  layer.attn_in = taken(norms, "attn_in");
  layer.mlp_in = taken(norms, "mlp_in");
  layer.attn_out = taken(norms, "attn_out");
  layer.mlp_out = taken(norms, "mlp_out");
  layer.q_norm = taken(norms, "q_norm");
  layer.k_norm = taken(norms, "k_norm");
  layer.qkv = projection(qkv);
  layer.out = projection(out);
  layer.gate_up = projection(gate_up);
  layer.down = projection(down);
  layer.window = window;
  layer.rope = rope;
  decoder.add_layer(std::move(layer));
}

// Refuses what would read or write outside the memory that was handed over.
void check(const Pass& pass, const Decoder& decoder, const Cache& cache) {
  const CacheShape& c = cache.shape();
  const DecoderShape& s = decoder.shape();
  if (c.layers != static_cast<int>(decoder.layers().size()) || c.kv_heads != s.kv_heads || c.head_dim != s.head_dim)
    throw std::invalid_argument("the cache was made for another decoder");
  if (pass.slots.empty() || pass.starts.size() != pass.slots.size() || pass.counts.size() != pass.slots.size())
    throw std::invalid_argument("slots, starts and counts differ in number");
  if (!pass.parents.empty() && pass.parents.size() != pass.tokens.size())
    throw std::invalid_argument("parents and tokens differ in number");
  size_t first = 0;
  for (size_t s = 0; s < pass.slots.size(); first += pass.counts[s], s++) {
    if (pass.slots[s] < 0 || pass.slots[s] >= c.slots || pass.starts[s] < 0 || pass.counts[s] < 1 ||
        pass.starts[s] + pass.counts[s] > c.capacity)
      throw std::invalid_argument("a slot or its new entries lie outside the cache");
    if (first + pass.counts[s] > pass.tokens.size()) break;
    for (int i = 0; i < pass.counts[s] && !pass.parents.empty(); i++)
      if (pass.parents[first + i] >= i || pass.parents[first + i] < -1)
        throw std::invalid_argument("parents are not a tree");
  }
  if (pass.logits && pass.role == Role::prompt) throw std::invalid_argument("a prompt is read without logits");
  if (pass.peaks && !pass.logits) throw std::invalid_argument("peaks are those of logits, which were not asked for");
  if (first != pass.tokens.size()) throw std::invalid_argument("tokens and counts do not fit together");
  for (int64_t token : pass.tokens)
    if (token < 0 || token >= decoder.ids()) throw std::invalid_argument("a token has no row in the embedding");
  for (const Layer& layer : decoder.layers())
    if (layer.rope >= static_cast<int>(pass.angles.size())) throw std::invalid_argument("a rotary table is missing");
}

// Returns the peaks, where they were asked for.
std::vector<int64_t> forward(Decoder& decoder, Cache& cache, std::vector<int64_t> tokens, std::vector<int> slots,
             std::vector<int> starts, std::vector<int> counts, std::vector<int> parents, const std::vector<std::pair<Address, Address>>& angles,
             const std::vector<std::pair<int, Address>>& taps, Address logits,
             Address peaks, bool prompt) {
  Pass pass;
  pass.tokens = std::move(tokens);
  pass.slots = std::move(slots);
  pass.starts = std::move(starts);
  pass.counts = std::move(counts);
  pass.parents = std::move(parents);
  for (const auto& [cos, sin] : angles) pass.angles.push_back({at<float>(cos), at<float>(sin)});
  for (const auto& [index, out] : taps) pass.taps.emplace_back(index, at<float>(out));
  pass.logits = at<float>(logits);
  pass.peaks = at<int64_t>(peaks);
  pass.role = prompt ? Role::prompt : Role::decoded;
  check(pass, decoder, cache);
  {
    nb::gil_scoped_release released;
    decoder.forward(pass, cache);
  }
  if (!pass.peaks) return {};
  return {pass.peaks, pass.peaks + pass.tokens.size()};
}

void bind_cache(nb::module_& m) {
  nb::class_<Cache>(m, "Cache")
      .def("__init__",
           [](Cache* self, std::vector<int> sizes, bool wide, Address keys, Address values) {
             if (sizes.size() != 5 || sizes[4] % kBlock) throw std::invalid_argument("a cache needs five sizes");
             CacheShape shape{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], wide};
             new (self) Cache(shape, at<void>(keys), at<void>(values));
           })
      .def("keep", [](Cache& cache, int slot, int start, const std::vector<int>& path) {
        cache.keep(slot, start, path.data(), static_cast<int>(path.size()));
      });
}

DecoderShape shape_of(const std::vector<int>& sizes, const std::vector<float>& factors, bool gelu) {
  if (sizes.size() != 6 || factors.size() != 4) throw std::invalid_argument("a decoder needs six sizes, four factors");
  DecoderShape shape;
  shape.hidden = sizes[0], shape.heads = sizes[1], shape.kv_heads = sizes[2], shape.head_dim = sizes[3];
  shape.mlp = sizes[4], shape.vocab = sizes[5];
  shape.scale = factors[0], shape.eps = factors[1], shape.embed_scale = factors[2], shape.logit_cap = factors[3];
  shape.activation = gelu ? Activation::gelu_tanh : Activation::silu;
  return shape;
}

}  // namespace

void bind_decoder(nb::module_& m) {
  bind_cache(m);
  bind_attention(m);
  nb::class_<Decoder>(m, "Decoder")
      .def("__init__",
           [](Decoder* self, const std::vector<int>& sizes, const std::vector<float>& factors, bool gelu,
              Address embedding) { new (self) Decoder(shape_of(sizes, factors, gelu), at<uint16_t>(embedding)); })
      .def("set_embedding", [](Decoder& d, const Parts& rows) { d.set_embedding(projection(rows)); })
      .def("add_layer", &add_layer)
      .def("set_head", [](Decoder& d, std::vector<float> norm, const Parts& head) {
        d.set_head(std::move(norm), projection(head));
      })
      .def("forward", &forward)
      .def("logits",
           [](Decoder& d, Address x, int rows, Address out) { d.logits(at<float>(x), rows, at<float>(out)); },
           nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace slipstream
