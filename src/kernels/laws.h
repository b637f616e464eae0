// What sampling and verification do to whole rows of a vocabulary: logits become weights, weights are drawn from, the highest are found,
// one law is taken from another. Rows are float32. Sums go over spans of fixed length, added up in float64 in their order, so that
// a row's bits depend neither on the rows beside it nor on the threads.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace slipstream {

constexpr int kLawSpan = 512;  // columns whose sum is taken in float32, in sixteen parts
constexpr int kChunk = 128;    // columns of one of the sums that a draw is looked up in

struct LawOps {
  // out = exp((x - peak) * inverse), where out is not null; returns the sum of at most kLawSpan columns
  float (*weigh)(const float* x, int cols, float peak, float inverse, float* out);
  void (*scale)(float* x, int cols, float factor);
  double (*total)(const float* x, int cols);
  // out = max(p * r - q, 0), where out is not null, without a q that is null; returns the sum, as `weigh`
  float (*residual)(const float* p, const float* q, float r, int cols, float* out);
  // the largest of at least one column; NaN is passed over
  float (*most)(const float* x, int cols);
};

// One row max(p r - q, 0), less its column `drop` (-1: none).
struct Residual {
  const float* p;
  const float* q;  // or null
  float r;
  int drop;
};

// Row i of x [rows][cols] becomes the law of exp((x - peaks[i]) * inverses[i]) in `out`; null: only the sums are wanted,
// which are returned.
std::vector<double> weigh_rows(const float* x, int cols, const std::vector<float>& peaks,
                               const std::vector<float>& inverses, float* out);

// For each row of weights, the column that its cumulated weights reach at a uniform in [0, 1) of their sum, never one of zero
// weight; -1 where the sum is not finite and above 0.
std::vector<int> draw(const std::vector<const float*>& rows, int cols, const std::vector<double>& uniforms);

// Sums of residual rows, and the last of them itself where `out` is not null.
std::vector<double> residuals(const std::vector<Residual>& rows, int cols, float* out);

// For each row i of x [rows][cols] the columns, in order, that hold at least its widths[i] highest; all that are as high as
// the lowest of them are among them.
std::vector<std::vector<int>> highest(const float* x, int cols, const std::vector<int>& widths);

// Philox4x64-10 (Salmon et al. 2011): n words of the blocks (1, 0, high, higher), (2, 0, ..), .. under a key.
std::vector<uint64_t> philox(const std::array<uint64_t, 2>& key, const std::array<uint64_t, 2>& counter, int n);

// The table for the level in use (cpu.h).
const LawOps& law_ops();

extern const LawOps kLawOpsPortable;
#if defined(__x86_64__)
extern const LawOps kLawOpsAvx2, kLawOpsAvx512;
#endif

}  // namespace slipstream
