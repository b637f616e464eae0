#include "measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "buffer.h"
#include "multiply.h"

namespace slipstream {
namespace {

typedef uint64_t Word8 __attribute__((vector_size(64)));

uint64_t read_all(const Word8* data, size_t begin, size_t end) {
  Word8 sums[4] = {};
  size_t i = begin;
  for (; i + 4 <= end; i += 4) {
    __builtin_prefetch(data + i + 64);
    __builtin_prefetch(data + i + 65);
    __builtin_prefetch(data + i + 66);
    __builtin_prefetch(data + i + 67);
    for (int j = 0; j < 4; j++) sums[j] ^= data[i + j];
  }
  Word8 all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  uint64_t one = 0;
  for (int j = 0; j < 8; j++) one ^= all[j];
  return one;
}

}  // namespace

double read_bandwidth(size_t bytes, int tries) {
  Buffer memory(bytes);
  std::memset(memory.as(), 1, bytes);  // pages of their own: untouched ones all map to one page of zeros
  size_t words = bytes / sizeof(Word8);
  std::atomic<uint64_t> keep{0};
  double best = 0;
  for (int i = 0; i < tries; i++) {
    auto start = std::chrono::steady_clock::now();
    Pool::instance().run([&](Slice slice) {
      size_t begin = words * slice.index / slice.count, end = words * (slice.index + 1) / slice.count;
      keep ^= read_all(memory.as<Word8>(), begin, end);
    });
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, bytes / took.count());
  }
  return best;
}

double pass_seconds(const std::vector<const Matrix*>& matrices, int rows) {
  int cols = 0, out = 0;
  for (const Matrix* each : matrices) cols = std::max(cols, each->in), out = std::max(out, each->out);
  std::vector<float> x(static_cast<size_t>(rows) * cols), y(static_cast<size_t>(rows) * out);
  for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 20) - 2048) / 1024;
  Input input;
  input.reserve(rows, cols);
  Pool& pool = Pool::instance();
  auto start = std::chrono::steady_clock::now();
  pool.run([&](Slice slice) {
    for (const Matrix* each : matrices) {
      prepare(each->kind, x.data(), cols, rows, each->in, input, slice);
      pool.barrier();
      multiply(*each, input, rows, y.data(), each->out, Role::decoded, slice);
      pool.barrier();
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace slipstream
