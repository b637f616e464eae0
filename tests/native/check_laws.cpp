// Rows of a vocabulary at every level of this processor: laws, sums, residuals, heads and draws against float64, and the
// same bits of a row alone, beside others and for 1, 2 and 4 threads.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cpu.h"
#include "laws.h"
#include "pool.h"
#include "random.h"

using namespace slipstream;

namespace {

constexpr int kRows = 3;

struct Laws {
  std::vector<float> probs;
  std::vector<double> sums;
};

Laws laws(const std::vector<float>& x, int cols, float inverse) {
  Laws found{std::vector<float>(x.size()), {}};
  std::vector<float> peaks;
  for (size_t i = 0; i < x.size(); i += cols) peaks.push_back(*std::max_element(&x[i], &x[i] + cols));
  found.sums = weigh_rows(x.data(), cols, peaks, std::vector<float>(peaks.size(), inverse), found.probs.data());
  return found;
}

// The largest error of a law relative to float64's, and of its sum.
double law_error(const std::vector<float>& x, int cols, float inverse, const Laws& found) {
  double worst = 0;
  for (size_t row = 0; row < found.sums.size(); row++) {
    const float* own = &x[row * cols];
    const double peak = *std::max_element(own, own + cols);
    double sum = 0;
    for (int i = 0; i < cols; i++) sum += std::exp((own[i] - peak) * inverse);
    for (int i = 0; i < cols; i++) {
      const double want = std::exp((own[i] - peak) * inverse) / sum;
      worst = std::max(worst, std::fabs(found.probs[row * cols + i] - want) / (want + 1e-37));
    }
    worst = std::max(worst, std::fabs(found.sums[row] / sum - 1));
  }
  return worst;
}

bool same_in_any_company(const std::vector<float>& x, int cols, const Laws& whole) {
  for (int threads : {1, 2, 4}) {
    Pool::instance().set_threads(threads);
    if (laws(x, cols, 1.4f).probs != whole.probs) return false;
    const std::vector<float> last(x.end() - cols, x.end());
    const Laws alone = laws(last, cols, 1.4f);
    if (std::memcmp(alone.probs.data(), &whole.probs[x.size() - cols], cols * sizeof(float))) return false;
  }
  return true;
}

bool residuals_hold(const std::vector<float>& p, const float* q, int cols) {
  std::vector<float> out(cols);
  for (int drop : {-1, 0, cols / 2, cols - 1}) {
    const double mass = residuals({{p.data(), q, 0.75f, drop}}, cols, out.data())[0];
    double sum = 0, size = 0;
    for (int i = 0; i < cols; i++) {
      const float want = i == drop ? 0 : std::max(0.0f, p[i] * 0.75f - (q ? q[i] : 0));
      if (out[i] != want) return false;
      sum += want;
      size += p[i];
    }
    if (std::fabs(mass - sum) > 1e-6 * size) return false;
  }
  return true;
}

bool heads_hold(const std::vector<float>& x, int cols) {
  for (int width : {1, std::min(20, cols), cols}) {
    const std::vector<int> ids = highest(x.data(), cols, {width})[0];
    float least = HUGE_VALF;
    for (int id : ids) least = std::min(least, x[id]);
    std::vector<int> want;
    for (int i = 0; i < cols; i++)
      if (x[i] >= least) want.push_back(i);
    if (static_cast<int>(ids.size()) < width || ids != want) return false;
  }
  return true;
}

// Cumulated weights must lie around the goal, up to rounding.
bool draws_hold(const std::vector<float>& p, int cols) {
  for (double u : {0.0, 0.3, 0.999999999}) {
    const int id = draw({p.data()}, cols, {u})[0];
    double before = 0, all = 0;
    for (int i = 0; i < cols; i++) all += p[i], before += i < id ? p[i] : 0;
    if (id < 0 || !(p[id] > 0) || before > u * all + 1e-12 || before + p[id] < u * all - 1e-12) return false;
  }
  const std::vector<float> none(cols);
  return draw({none.data()}, cols, {0.5})[0] == -1;
}

bool check(Level level, int cols) {
  set_level(name(level));
  Pool::instance().set_threads(2);
  std::vector<float> x = numbers(static_cast<size_t>(kRows) * cols, cols);
  for (float& each : x) each *= 20;
  const Laws whole = laws(x, cols, 1.4f);
  const double off = law_error(x, cols, 1.4f, whole);
  const std::vector<float> p(whole.probs.begin(), whole.probs.begin() + cols);
  const bool same = same_in_any_company(x, cols, whole);
  const bool taken = residuals_hold(p, &whole.probs[(kRows - 1) * static_cast<size_t>(cols)], cols) &&
                     residuals_hold(p, nullptr, cols);
  const bool heads = heads_hold(x, cols) && heads_hold(std::vector<float>(cols), cols), drawn = draws_hold(p, cols);
  const bool fine = off < 2e-5 && same && taken && heads && drawn;
  if (!fine)
    std::printf("%s, %d columns: error %.1e, %s, residuals %s, heads %s, draws %s\n", name(level), cols, off,
                same ? "same in company" : "DIFFERENT in company", taken ? "ok" : "WRONG", heads ? "ok" : "WRONG",
                drawn ? "ok" : "WRONG");
  return fine;
}

}  // namespace

int main() {
  int wrong = 0;
  for (Level level : available_levels())
    for (int cols : {1, 2, 15, 16, 17, 127, 128, 129, 511, 512, 513, 4097, 100003}) wrong += !check(level, cols);
  std::printf("laws: %s\n", wrong ? "WRONG" : "ok");
  return wrong != 0;
}
