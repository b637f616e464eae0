#include "laws.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "cpu.h"
#include "pool.h"

namespace slipstream {
namespace {

constexpr int kAlone = 1 << 18;      // columns for which it does not pay to wake up a second thread
constexpr int kPart = 8 * kLawSpan;  // columns that a thread takes at once

// Calls work(row, first, last) for each part of this slice's share of rows * cols.
template <class Work>
void each_part(int rows, int cols, Slice slice, const Work& work) {
  const int parts = (cols + kPart - 1) / kPart;
  const Range mine = share(rows * parts, slice);
  for (int i = mine.begin; i < mine.end; i++) {
    const int first = i % parts * kPart;
    work(i / parts, first, std::min(cols, first + kPart));
  }
}

// Two steps over all parts: none begins the second before all are done with the first. A thread's parts are the same.
template <class First, class Second>
void in_threads(int rows, int cols, const First& first, const Second& second) {
  if (static_cast<int64_t>(rows) * cols <= kAlone) {
    each_part(rows, cols, Slice{0, 1}, first);
    each_part(rows, cols, Slice{0, 1}, second);
    return;
  }
  Pool& pool = Pool::instance();
  pool.run([&](Slice slice) {
    each_part(rows, cols, slice, first);
    pool.barrier();
    each_part(rows, cols, slice, second);
  });
}

template <class First>
void in_threads(int rows, int cols, const First& first) {
  if (static_cast<int64_t>(rows) * cols <= kAlone) return each_part(rows, cols, Slice{0, 1}, first);
  Pool::instance().run([&](Slice slice) { each_part(rows, cols, slice, first); });
}

// Sums of the spans of each row.
class Spans {
 public:
  Spans(int rows, int cols) : each_((cols + kLawSpan - 1) / kLawSpan), sums_(static_cast<size_t>(rows) * each_) {}

  double& at(int row, int column) { return sums_[static_cast<size_t>(row) * each_ + column / kLawSpan]; }

  double total(int row) const {
    double sum = 0;
    for (int i = 0; i < each_; i++) sum += sums_[static_cast<size_t>(row) * each_ + i];
    return sum;
  }

  std::vector<double> totals() const {
    std::vector<double> all;
    for (int row = 0; row * static_cast<size_t>(each_) < sums_.size(); row++) all.push_back(total(row));
    return all;
  }

 private:
  const int each_;
  std::vector<double> sums_;
};

// Columns first..last of a residual row, without the one that is dropped.
double residual_span(const LawOps& ops, const Residual& row, int first, int last, float* out) {
  const auto piece = [&](int from, int to) {
    return static_cast<double>(
        ops.residual(row.p + from, row.q ? row.q + from : nullptr, row.r, to - from, out ? out + from : nullptr));
  };
  if (row.drop < first || row.drop >= last) return piece(first, last);
  if (out) out[row.drop] = 0;
  return piece(first, row.drop) + piece(row.drop + 1, last);
}

// Where cumulated weights pass a goal. Rounding may carry the goal past the end: then the last place that adds weight is
// meant.
int reached(const std::vector<double>& upto, double goal) {
  const auto over = std::upper_bound(upto.begin(), upto.end(), goal);
  return static_cast<int>(std::min(over, std::lower_bound(upto.begin(), upto.end(), upto.back())) - upto.begin());
}

template <class T>
std::vector<double> cumulated(const T* x, int count) {
  std::vector<double> upto(count);
  double sum = 0;
  for (int i = 0; i < count; i++) upto[i] = sum += x[i];
  return upto;
}

// In two levels: the sums of chunks, then the columns of one.
int draw_one(const float* x, int cols, const double* sums, int chunks, double uniform) {
  const std::vector<double> upto = cumulated(sums, chunks);
  const double total = upto.back();
  if (!(total > 0 && total < HUGE_VAL)) return -1;
  const double goal = uniform * total;
  const int chunk = reached(upto, goal), first = chunk * kChunk;
  const std::vector<double> inside = cumulated(x + first, std::min(kChunk, cols - first));
  return first + reached(inside, goal - (chunk ? upto[chunk - 1] : 0));
}

// As many chunks of columns have a maximum of at least the width-th of all maxima, so there are as many such columns, and
// only those chunks are read again.
std::vector<int> highest_of(const LawOps& ops, const float* x, int cols, int width) {
  // the square root balances choosing among maxima with reading chunks again
  const int wish = static_cast<int>(std::sqrt(16.0 * cols / width)) / 16 * 16;
  const int size = std::max(16, wish), chunks = (cols + size - 1) / size;
  float bound = -HUGE_VALF;
  std::vector<float> maxima(chunks);
  for (int i = 0; i < chunks; i++) maxima[i] = ops.most(x + i * size, std::min(size, cols - i * size));
  if (width <= chunks) {
    std::vector<float> order = maxima;
    std::nth_element(order.begin(), order.begin() + (width - 1), order.end(), std::greater<float>());
    bound = order[width - 1];
  }
  std::vector<int> found;
  for (int i = 0; i < chunks; i++) {
    if (maxima[i] < bound) continue;
    for (int at = i * size, end = std::min(cols, at + size); at < end; at++)
      if (x[at] >= bound) found.push_back(at);
  }
  return found;
}

}  // namespace

const LawOps& law_ops() { return SLIPSTREAM_AT_LEVEL(kLawOps); }

std::vector<double> weigh_rows(const float* x, int cols, const std::vector<float>& peaks,
                               const std::vector<float>& inverses, float* out) {
  const LawOps& ops = law_ops();
  const int rows = static_cast<int>(peaks.size());
  Spans spans(rows, cols);
  const auto weigh = [&](int row, int first, int last) {
    const size_t start = static_cast<size_t>(row) * cols;
    for (int i = first; i < last; i += kLawSpan)
      spans.at(row, i) = ops.weigh(x + start + i, std::min(kLawSpan, last - i), peaks[row], inverses[row],
                                   out ? out + start + i : nullptr);
  };
  const auto scale = [&](int row, int first, int last) {
    const float factor = static_cast<float>(1.0 / spans.total(row));
    ops.scale(out + static_cast<size_t>(row) * cols + first, last - first, factor);
  };
  if (out)
    in_threads(rows, cols, weigh, scale);
  else
    in_threads(rows, cols, weigh);
  return spans.totals();
}

std::vector<int> draw(const std::vector<const float*>& rows, int cols, const std::vector<double>& uniforms) {
  const LawOps& ops = law_ops();
  const size_t chunks = (cols + kChunk - 1) / kChunk;
  std::vector<double> sums(rows.size() * chunks);
  in_threads(static_cast<int>(rows.size()), cols, [&](int row, int first, int last) {
    for (int i = first; i < last; i += kChunk)
      sums[row * chunks + i / kChunk] = ops.total(rows[row] + i, std::min(kChunk, last - i));
  });
  std::vector<int> found;
  for (size_t row = 0; row < rows.size(); row++)
    found.push_back(draw_one(rows[row], cols, sums.data() + row * chunks, static_cast<int>(chunks), uniforms[row]));
  return found;
}

std::vector<double> residuals(const std::vector<Residual>& rows, int cols, float* out) {
  const LawOps& ops = law_ops();
  const int count = static_cast<int>(rows.size());
  Spans spans(count, cols);
  in_threads(count, cols, [&](int row, int first, int last) {
    float* to = row == count - 1 ? out : nullptr;
    for (int i = first; i < last; i += kLawSpan)
      spans.at(row, i) = residual_span(ops, rows[row], i, std::min(last, i + kLawSpan), to);
  });
  return spans.totals();
}

std::vector<std::vector<int>> highest(const float* x, int cols, const std::vector<int>& widths) {
  const LawOps& ops = law_ops();
  const int rows = static_cast<int>(widths.size());
  std::vector<std::vector<int>> found(rows);
  const auto some = [&](Slice slice) {
    const Range mine = share(rows, slice);
    for (int row = mine.begin; row < mine.end; row++)
      found[row] = highest_of(ops, x + static_cast<size_t>(row) * cols, cols, widths[row]);
  };
  if (static_cast<int64_t>(rows) * cols <= kAlone)
    some(Slice{0, 1});
  else
    Pool::instance().run(some);
  return found;
}

std::vector<uint64_t> philox(const std::array<uint64_t, 2>& key, const std::array<uint64_t, 2>& counter, int n) {
  typedef unsigned __int128 Wide;
  constexpr Wide kFirst = 0xd2e7470ee14c6c93, kSecond = 0xca5a826395121157;
  std::vector<uint64_t> words;
  for (uint64_t block = 1; static_cast<int>(words.size()) < n; block++) {
    uint64_t x[4] = {block, 0, counter[0], counter[1]}, k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
      const Wide left = kFirst * x[0], right = kSecond * x[2];
      const uint64_t next[4] = {static_cast<uint64_t>(right >> 64) ^ x[1] ^ k0, static_cast<uint64_t>(right),
                                static_cast<uint64_t>(left >> 64) ^ x[3] ^ k1, static_cast<uint64_t>(left)};
      std::copy(next, next + 4, x);
      k0 += 0x9e3779b97f4a7c15;
      k1 += 0xbb67ae8584caa73b;
    }
    words.insert(words.end(), x, x + 4);
  }
  words.resize(n);
  return words;
}

}  // namespace slipstream
