// The decoder at every level of this processor and every kind: logits against float64, and the same bits of a row
// whether it comes alone, in a prompt, in a tree or beside another sequence, for 1, 2 and 4 threads.
#include <cstdio>
#include <cstring>

#include "cpu.h"
#include "pool.h"
#include "tiny_decoder.h"

using namespace slipstream;

namespace {

using Tokens = std::vector<int64_t>;

// A cache of two slots in which what was not written is not a number.
struct Memory {
  CacheShape shape;
  std::vector<float> keys, values;

  explicit Memory(bool wide) : shape{kLayers, 2, kKvHeads, kDim, kPositions, wide} {
    keys.assign(shape.heads() * kPositions * kDim, std::nanf(""));
    values.assign(shape.heads() * kPositions * shape.value_stride(), std::nanf(""));
    if (!wide) std::memset(keys.data(), 0xff, keys.size() * 4), std::memset(values.data(), 0xff, values.size() * 4);
  }
  Cache cache() { return Cache(shape, keys.data(), values.data()); }
};

std::vector<float> run(TinyDecoder& tiny, Cache& cache, std::vector<int> slots, std::vector<int> starts, Tokens tokens,
                       std::vector<int> parents = {}) {
  std::vector<float> logits(tokens.size() * kVocab);
  Pass pass;
  pass.counts.assign(slots.size(), static_cast<int>(tokens.size() / slots.size()));  // rows of a pass are alike here
  pass.tokens = std::move(tokens);
  pass.slots = std::move(slots);
  pass.starts = std::move(starts);
  pass.parents = std::move(parents);
  pass.angles = {tiny.angles()};
  pass.logits = logits.data();
  tiny.decoder().forward(pass, cache);
  return logits;
}

Tokens text(int count, uint32_t seed) {
  Tokens all;
  for (float x : numbers(count, seed)) all.push_back(static_cast<int64_t>((x + 1) / 2 * (kVocab - 1)));
  return all;
}

bool same(const std::vector<float>& a, size_t row, const std::vector<float>& b, size_t other) {
  return std::memcmp(&a[row * kVocab], &b[other * kVocab], kVocab * sizeof(float)) == 0;
}

// The largest error of the last row relative to the largest logit.
double error(const TinyDecoder& tiny, const Tokens& tokens, const std::vector<float>& logits) {
  const Doubles want = tiny.exact(tokens);
  double worst = 0, size = 0;
  for (int v = 0; v < kVocab; v++) {
    const double off = std::fabs(logits[logits.size() - kVocab + v] - want[v]);
    worst = off <= worst ? worst : off;  // what is not a number is the worst
    size = std::fmax(size, std::fabs(want[v]));
  }
  return worst / size;
}

// The same text in passes of one token, then two, and so on.
bool in_pieces(TinyDecoder& tiny, bool wide, const Tokens& tokens, const std::vector<float>& whole) {
  Memory memory(wide);
  Cache cache = memory.cache();
  const int all = static_cast<int>(tokens.size());
  for (int start = 0, count = 1; start < all; start += count++) {
    const Tokens piece(tokens.begin() + start, tokens.begin() + std::min(start + count, all));
    const std::vector<float> found = run(tiny, cache, {1}, {start}, piece);
    if (std::memcmp(found.data(), &whole[start * kVocab], found.size() * sizeof(float))) return false;
  }
  return true;
}

// Reads a text as a prompt, in pieces that grow by `more`, and returns the states behind the last layer.
std::vector<float> read(TinyDecoder& tiny, bool wide, const Tokens& tokens, int first, int more) {
  Memory memory(wide);
  Cache cache = memory.cache();
  const int all = static_cast<int>(tokens.size()), hidden = tiny.decoder().shape().hidden;
  std::vector<float> states(static_cast<size_t>(all) * hidden);
  for (int start = 0, count = first; start < all; start += count, count += more) {
    Pass pass;
    pass.tokens.assign(tokens.begin() + start, tokens.begin() + std::min(start + count, all));
    pass.slots = {1}, pass.starts = {start}, pass.counts = {pass.rows()};
    pass.angles = {tiny.angles()};
    pass.taps = {{-1, &states[static_cast<size_t>(start) * hidden]}};
    pass.role = Role::prompt;
    tiny.decoder().forward(pass, cache);
  }
  return states;
}

// A prompt has the same bits in any pieces, and its states are near the decoded ones.
bool prompts(TinyDecoder& tiny, bool wide, const Tokens& tokens, const std::vector<float>& decoded, double most) {
  const std::vector<float> whole = read(tiny, wide, tokens, static_cast<int>(tokens.size()), 0);
  if (read(tiny, wide, tokens, 1, 1) != whole || read(tiny, wide, tokens, 33, 16) != whole) return false;
  std::vector<float> logits(decoded.size());
  tiny.decoder().logits(whole.data(), static_cast<int>(tokens.size()), logits.data());
  float off = 0, size = 0;
  for (size_t i = 0; i < logits.size(); i++) {
    off = std::fmax(off, std::fabs(logits[i] - decoded[i]));
    size = std::fmax(size, std::fabs(decoded[i]));
  }
  return off < most * size;
}

// Two sequences of different lengths with a tree each; then a path of one is kept and goes on.
bool trees(TinyDecoder& tiny, bool wide) {
  const std::vector<int> parents = {-1, 0, 0, 1, 2, 4};
  const Tokens prefixes[2] = {text(16, 50), text(9, 60)}, nodes[2] = {text(6, 70), text(6, 80)}, more = {5};
  Memory memory(wide);
  Cache cache = memory.cache();
  Tokens both;
  std::vector<int> twice;
  for (int s = 0; s < 2; s++) {
    run(tiny, cache, {s}, {0}, prefixes[s]);
    both.insert(both.end(), nodes[s].begin(), nodes[s].end());
    twice.insert(twice.end(), parents.begin(), parents.end());
  }
  const std::vector<float> found = run(tiny, cache, {0, 1}, {16, 9}, both, twice);
  for (int s = 0; s < 2; s++)
    for (int node = 0; node < 6; node++) {
      Tokens path;
      for (int at = node; at >= 0; at = parents[at]) path.insert(path.begin(), nodes[s][at]);
      Memory fresh(wide);
      Cache other = fresh.cache();
      run(tiny, other, {0}, {0}, prefixes[s]);
      const int start = static_cast<int>(prefixes[s].size());
      if (!same(found, s * 6 + node, run(tiny, other, {0}, {start}, path), path.size() - 1)) return false;
      if (node != 5 || s != 1) continue;
      const int kept[] = {0, 2, 4, 5};
      cache.keep(1, start, kept, 4);
      const std::vector<float> next = run(tiny, other, {0}, {start + 4}, more);
      if (!same(run(tiny, cache, {1}, {start + 4}, more), 0, next, 0)) return false;
    }
  return true;
}

bool check(Level level, int kind, bool wide) {
  const char* names[] = {"bf16", "q4", "q8", "q4a8", "w8a8"};
  const double most[] = {0.02, 0.02, 0.02, 0.05, 0.05};  // what rounding activations may add up to in three layers
  TinyDecoder tiny(static_cast<Kind>(kind));
  Memory memory(wide);
  Cache cache = memory.cache();
  const Tokens prompt = text(270, 40);
  const std::vector<float> whole = run(tiny, cache, {1}, {0}, prompt);
  const double off = error(tiny, prompt, whole);
  bool kept = true;
  for (int threads : {1, 2, 4}) {
    Pool::instance().set_threads(threads);
    kept = kept && trees(tiny, wide) && (threads > 2 || in_pieces(tiny, wide, prompt, whole));
    kept = kept && prompts(tiny, wide, prompt, whole, 2 * most[kind]);
  }
  const bool good = off < most[kind] && kept;
  std::printf("decoder %-8s %-5s %s cache: error %.1e, bits %s: %s\n", name(level), names[kind], wide ? "float32" : "bf16",
              off, kept ? "kept" : "CHANGED", good ? "ok" : "FAILED");
  return good;
}

}  // namespace

int main() {
  int failures = 0;
  for (Level level : available_levels()) {
    set_level(name(level));
    for (int kind = 0; kind < 5; kind++)
      for (bool wide : {false, true}) failures += !check(level, kind, wide);
  }
  return failures != 0;
}
