// The functions of laws.h on vectors of sixteen floats; included once per level, compiled for it.
#pragma once

#include "laws.h"
#include "simd.h"

namespace slipstream::SLIPSTREAM_VARIANT {

// Calls visit(first column, columns) for each vector of a row, the last one's rest included.
template <class Visit>
inline void each_vector(int cols, const Visit& visit) {
  int i = 0;
  for (; i + kVec <= cols; i += kVec) visit(i, kVec);
  if (i < cols) visit(i, cols - i);
}

inline Vec load_of(const float* x, int count) { return count == kVec ? load(x) : load_some(x, count); }
inline void store_of(float* x, const Vec& v, int count) { count == kVec ? store(x, v) : store_some(x, v, count); }

inline float weigh(const float* x, int cols, float peak, float inverse, float* out) {
  const Vec below = set(-peak), by = set(inverse);
  Vec total = set(0);
  each_vector(cols, [&](int i, int count) {
    Vec w = exp(mul(add(load_of(x + i, count), below), by));
    if (out) store_of(out + i, w, count);
    total = add(total, count == kVec ? w : only(w, 0, count, 0));
  });
  return sum(total);
}

inline void scale(float* x, int cols, float factor) {
  const Vec by = set(factor);
  each_vector(cols, [&](int i, int count) { store_of(x + i, mul(load_of(x + i, count), by), count); });
}

inline double total(const float* x, int cols) {
  double part[kVec] = {};
  int i = 0;
  for (; i + kVec <= cols; i += kVec)
    for (int k = 0; k < kVec; k++) part[k] += x[i + k];
  for (int k = 0; i < cols; i++, k++) part[k] += x[i];
  for (int width = kVec / 2; width; width /= 2)
    for (int k = 0; k < width; k++) part[k] += part[k + width];
  return part[0];
}

inline float residual(const float* p, const float* q, float r, int cols, float* out) {
  const Vec by = set(r), none = set(0);
  Vec total = none;
  each_vector(cols, [&](int i, int count) {
    Vec w = mul(load_of(p + i, count), by);
    if (q) w = larger(none, add(w, mul(load_of(q + i, count), set(-1))));
    if (out) store_of(out + i, w, count);
    total = add(total, w);
  });
  return sum(total);
}

inline float most(const float* x, int cols) {
  constexpr float kLowest = -__builtin_huge_valf();
  constexpr int kChains = 4;  // a comparison waits for the one before it
  Vec best[kChains] = {set(kLowest), set(kLowest), set(kLowest), set(kLowest)};
  int i = 0;
  for (; i + kChains * kVec <= cols; i += kChains * kVec)
    for (int k = 0; k < kChains; k++) best[k] = larger(best[k], load(x + i + k * kVec));
  each_vector(cols - i, [&](int at, int count) {
    Vec here = load_of(x + i + at, count);
    best[0] = larger(best[0], count == kVec ? here : only(here, 0, count, kLowest));
  });
  return largest(larger(larger(best[0], best[1]), larger(best[2], best[3])));
}

constexpr LawOps kLaws = {weigh, scale, total, residual, most};

}  // namespace slipstream::SLIPSTREAM_VARIANT
