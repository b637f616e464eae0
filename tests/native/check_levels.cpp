// Every level of this processor and every kind: products against float64 sums of the packed values, and the same bits of
// a row for other numbers of rows. A program of its own, so that it runs under an emulator too:
//   tests/native/run.sh [compiler [runner]], for example aarch64-linux-gnu-g++ 'qemu-aarch64-static -L /usr/aarch64-linux-gnu'
#include <cmath>
#include <cstdio>
#include <vector>

#include "cpu.h"
#include "gemm.h"
#include "pack.h"
#include "pool.h"

using namespace slipstream;

namespace {

constexpr int kOut = 70, kIn = 330, kRowCount = 19;

float number(uint32_t seed) {  // in -1..1, the same on every machine
  seed = (seed ^ 61) ^ (seed >> 16);
  seed *= 9;
  seed ^= seed >> 4;
  seed *= 0x27d4eb2d;
  return static_cast<float>(static_cast<int32_t>(seed ^ (seed >> 15)) >> 8) / (1 << 23);
}

std::vector<float> numbers(size_t count, uint32_t seed) {
  std::vector<float> all(count);
  for (size_t i = 0; i < count; i++) all[i] = number(static_cast<uint32_t>(i) * 7 + seed);
  return all;
}

std::vector<float> product(const Matrix& matrix, const float* x, int rows) {
  Input input;
  input.reserve(rows, kIn);
  std::vector<float> y(static_cast<size_t>(rows) * kOut);
  Pool::instance().run([&](Slice slice) {
    prepare(matrix.kind, x, kIn, rows, kIn, input, slice);
    Pool::instance().barrier();
    multiply(matrix, input, rows, y.data(), kOut, slice);
  });
  return y;
}

// The largest error relative to the sum of magnitudes of the terms.
double error(const Matrix& matrix, const std::vector<float>& x, const std::vector<float>& y) {
  std::vector<float> weights(static_cast<size_t>(kOut) * kIn);
  unpack(matrix, weights.data());
  double worst = 0;
  for (int r = 0; r < kRowCount; r++)
    for (int o = 0; o < kOut; o++) {
      double sum = 0, size = 0;
      for (int k = 0; k < kIn; k++) {
        double term = static_cast<double>(weights[o * kIn + k]) * x[r * kIn + k];
        sum += term;
        size += std::fabs(term);
      }
      worst = std::fmax(worst, std::fabs(y[r * kOut + o] - sum) / size);
    }
  return worst;
}

bool same_in_any_company(const Matrix& matrix, const std::vector<float>& x, const std::vector<float>& whole) {
  for (int rows = 1; rows <= kRowCount; rows++) {
    std::vector<float> part = product(matrix, x.data(), rows);
    if (std::memcmp(part.data(), whole.data(), part.size() * sizeof(float))) return false;
  }
  return true;
}

}  // namespace

int main() {
  const char* names[] = {"bf16", "q4", "q8", "q4a8", "w8a8"};
  // the rounding of activations to bfloat16 is up to 2^-9 of a term; to 8 bits, half of 1/127 of the group's largest
  const double most[] = {0.004, 0.004, 0.004, 0.02, 0.02};
  std::vector<float> weights = numbers(static_cast<size_t>(kOut) * kIn, 1), x = numbers(kRowCount * kIn, 2);
  int failures = 0;
  Pool::instance().set_threads(2);
  for (Level each : available_levels()) {
    set_level(name(each));
    for (int kind = 0; kind < 5; kind++) {
      Kind k = static_cast<Kind>(kind);
      Matrix matrix = make_matrix(k, scales_for(k, Source::float32), kOut, kIn, nullptr);
      pack_rows(matrix, Source::float32, weights.data(), 0, kOut);
      std::vector<float> y = product(matrix, x.data(), kRowCount);
      double off = error(matrix, x, y);
      bool same = same_in_any_company(matrix, x, y), good = off < most[kind] && same;
      failures += !good;
      std::printf("%-8s %-5s error %.1e of the terms, bits %s: %s\n", name(each), names[kind], off,
                  same ? "kept" : "CHANGED", good ? "ok" : "FAILED");
    }
  }
  return failures != 0;
}
