// Every level of this processor, every kind and both roles: products against float64 sums of the packed values, and the
// same bits of a row for 1 to 33 rows and 1, 2 and 4 threads. A program of its own, so that it runs under an emulator: run.sh.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cpu.h"
#include "gemm.h"
#include "half.h"
#include "pack.h"
#include "pool.h"
#include "random.h"

using namespace slipstream;

namespace {

constexpr int kMost = 33;  // rows

struct Case {
  const char* name;
  Kind kind;
  Source source;
  int out, in;
};

constexpr Case kCases[] = {
    {"bf16", Kind::bf16, Source::float32, 70, 330},     {"q4", Kind::q4, Source::float32, 70, 330},
    {"q8", Kind::q8, Source::float32, 70, 330},         {"q4a8", Kind::q4a8, Source::float32, 70, 330},
    {"w8a8", Kind::w8a8, Source::float32, 70, 330},     {"q4 Q4_K", Kind::q4, Source::gguf_q4_k, 37, 2304},
    {"q4a8 Q4_K", Kind::q4a8, Source::gguf_q4_k, 37, 2304}, {"w8a8 one", Kind::w8a8, Source::float32, 1, 1},
    {"q4a8 one", Kind::q4a8, Source::float32, 33, 33},   {"q4a8 long", Kind::q4a8, Source::float32, 37, 1600},
    {"w8a8 long", Kind::w8a8, Source::float32, 37, 1600},
};

Matrix filled(const Case& c) {
  Matrix matrix = make_matrix(c.kind, scales_for(c.kind, c.source), c.out, c.in, numbers(c.out, 9).data());
  if (c.source == Source::float32) {
    pack_rows(matrix, c.source, numbers(static_cast<size_t>(c.out) * c.in, 1).data(), 0, c.out);
    return matrix;
  }
  const size_t block = row_bytes(c.source, 256), count = c.out * row_bytes(c.source, c.in);
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; i++) bytes[i] = static_cast<uint8_t>(127 * number(static_cast<uint32_t>(i)) + 128);
  for (size_t at = 0; at < count; at += block)
    for (int k = 0; k < 2; k++) {
      const uint16_t half = half_of_float(number(static_cast<uint32_t>(at + k)) / 64);
      std::memcpy(&bytes[at + 2 * k], &half, 2);
    }
  pack_rows(matrix, c.source, bytes.data(), 0, c.out);
  return matrix;
}

// Integers with a 127 in each group: rounding to bfloat16 or to 8 bits leaves them as they are.
std::vector<float> activations(int in) {
  std::vector<float> x = numbers(static_cast<size_t>(kMost) * in, 2);
  for (size_t i = 0; i < x.size(); i++) x[i] = i % in % 32 ? std::round(127 * x[i]) : (x[i] < 0 ? -127.0f : 127.0f);
  return x;
}

std::vector<float> product(const Matrix& matrix, Role role, const float* x, int rows) {
  Input input;
  input.reserve(rows, matrix.in);
  std::vector<float> y(static_cast<size_t>(rows) * matrix.out);
  Pool::instance().run([&](Slice slice) {
    prepare(form_of(matrix.kind, role), x, matrix.in, rows, matrix.in, input, slice);
    Pool::instance().barrier();
    const Range mine = share(matrix.blocks(), slice);
    (role == Role::prompt ? multiply_prompt : multiply_blocks)(matrix, input, rows, y.data(), matrix.out, mine);
  });
  return y;
}

// The largest error relative to the sum of magnitudes of the terms.
double error(const Matrix& matrix, const std::vector<float>& x, const std::vector<float>& y) {
  const int out = matrix.out, in = matrix.in;
  std::vector<float> weights(static_cast<size_t>(out) * in);
  unpack(matrix, weights.data());
  double worst = 0;
  for (int r = 0; r < kMost; r++)
    for (int o = 0; o < out; o++) {
      double sum = matrix.bias.as<float>()[o], size = std::fabs(sum);
      for (int k = 0; k < in; k++) {
        double term = static_cast<double>(weights[o * in + k]) * x[r * in + k];
        sum += term;
        size += std::fabs(term);
      }
      const double off = std::fabs(y[r * out + o] - sum) / size;
      worst = off <= worst ? worst : off;  // what is not a number is the worst
    }
  return worst;
}

bool same_in_any_company(const Matrix& matrix, Role role, const std::vector<float>& x, const std::vector<float>& whole) {
  for (int threads : {1, 2, 4}) {
    Pool::instance().set_threads(threads);
    for (int rows = 1; rows <= kMost; rows++) {
      const size_t rest = kMost - rows;
      std::vector<float> first = product(matrix, role, x.data(), rows);
      std::vector<float> last = product(matrix, role, &x[rest * matrix.in], rows);
      if (std::memcmp(first.data(), whole.data(), first.size() * sizeof(float))) return false;
      if (std::memcmp(last.data(), &whole[rest * matrix.out], last.size() * sizeof(float))) return false;
    }
  }
  return true;
}

bool check(Level level, const Case& c, Role role) {
  const Matrix matrix = filled(c);
  const bool own = form_of(Kind::q4a8, role) == Kind::bf16;  // weights are rounded to eight bits of mantissa
  const double allowed = own && c.kind != Kind::bf16 ? 4e-3 : 5e-7;
  const std::vector<float> x = activations(c.in), y = product(matrix, role, x.data(), kMost);
  const double off = error(matrix, x, y);
  const bool same = same_in_any_company(matrix, role, x, y), good = off < allowed && same;
  std::printf("gemm %-8s %-10s %s error %.1e of the terms, bits %s: %s\n", name(level), c.name,
              role == Role::prompt ? "prompt " : "decoded", off, same ? "kept" : "CHANGED", good ? "ok" : "FAILED");
  return good;
}

}  // namespace

int main() {
  int failures = 0;
  for (Level level : available_levels()) {
    set_level(name(level));
    for (const Case& c : kCases)
      for (Role role : {Role::decoded, Role::prompt}) failures += !check(level, c, role);
  }
  return failures != 0;
}
