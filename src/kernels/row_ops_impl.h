// The functions of row_ops.h on vectors of sixteen floats; included once per level, compiled for it.
#pragma once

#include <cmath>

#include "attention_impl.h"
#include "row_ops.h"
#include "simd.h"

namespace slipstream::SLIPSTREAM_VARIANT {

inline void embed(const uint16_t* row, int cols, float scale, float* out) {
  const Vec s = set(scale);
  int i = 0;
  for (; i + kVec <= cols; i += kVec) store(out + i, mul(load(row + i), s));
  if (i < cols) store_some(out + i, mul(load_some(row + i, cols - i), s), cols - i);
}

inline void add_to(float* h, const float* x, int cols) {
  int i = 0;
  for (; i + kVec <= cols; i += kVec) store(h + i, add(load(h + i), load(x + i)));
  for (; i < cols; i++) h[i] += x[i];
}

inline void rms_norm(const float* x, const float* weight, float eps, int cols, float* out) {
  Vec even = set(0), odd = set(0);
  int i = 0;
  for (; i + 2 * kVec <= cols; i += 2 * kVec) {
    Vec a = load(x + i), b = load(x + i + kVec);
    even = madd(a, a, even);
    odd = madd(b, b, odd);
  }
  for (; i < cols; i += kVec) {
    Vec a = load_some(x + i, cols - i < kVec ? cols - i : kVec);
    even = madd(a, a, even);
  }
  const Vec r = set(1.0f / std::sqrt(sum(add(even, odd)) / cols + eps));
  for (i = 0; i + kVec <= cols; i += kVec) store(out + i, mul(mul(load(x + i), r), load(weight + i)));
  int rest = cols - i;
  if (rest) store_some(out + i, mul(mul(load_some(x + i, rest), r), load_some(weight + i, rest)), rest);
}

struct Rotated {
  Vec low, high;
};
inline Rotated rotated(const Vec& a, const Vec& b, const Vec& c, const Vec& s) {
  return {madd(mul(b, set(-1)), s, mul(a, c)), madd(a, s, mul(b, c))};
}

inline void rotate(float* head, const float* cos, const float* sin, int half) {
  float* other = head + half;
  int i = 0;
  for (; i + kVec <= half; i += kVec) {
    const Rotated r = rotated(load(head + i), load(other + i), load(cos + i), load(sin + i));
    store(head + i, r.low);
    store(other + i, r.high);
  }
  const int rest = half - i;
  if (!rest) return;
  const Rotated r = rotated(load_some(head + i, rest), load_some(other + i, rest), load_some(cos + i, rest), load_some(sin + i, rest));
  store_some(head + i, r.low, rest);
  store_some(other + i, r.high, rest);
}

// silu(x) = x / (1 + e^-x); the tanh form of GELU is x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3)
inline Vec activated(Activation activation, const Vec& x) {
  Vec t = mul(x, set(-1.0f));
  if (activation == Activation::gelu_tanh) {
    Vec cubic = madd(mul(x, x), set(0.044715f), set(1.0f));
    t = mul(mul(x, cubic), set(-2.0f * 0.7978845608f));
  }
  return div(x, add(set(1.0f), exp(t)));
}

inline void gate(Activation activation, const float* gates, const float* up, int cols, float* out) {
  for (int i = 0; i < cols; i += kVec) {
    int count = cols - i < kVec ? cols - i : kVec;
    if (count == kVec)
      store(out + i, mul(activated(activation, load(gates + i)), load(up + i)));
    else
      store_some(out + i, mul(activated(activation, load_some(gates + i, count)), load_some(up + i, count)), count);
  }
}

inline void cap_at(float* x, float cap, int cols) {
  for (int i = 0; i < cols; i += kVec) {
    int count = cols - i < kVec ? cols - i : kVec;
    Vec e = exp(mul(load_some(x + i, count), set(2.0f / cap)));
    Vec tanh = add(set(1.0f), div(set(-2.0f), add(e, set(1.0f))));
    store_some(x + i, mul(tanh, set(cap)), count);
  }
}

inline void write_values(const float* x, int cols, bool wide, void* out) {
  for (int i = 0; i < cols; i += kVec) {
    const Vec some = cols - i < kVec ? load_some(x + i, cols - i) : load(x + i);
    if (wide) {
      store(static_cast<float*>(out) + i, some);
      continue;
    }
    uint16_t rounded[kVec];
    store(rounded, some);
    uint16_t* to = static_cast<uint16_t*>(out) + 2 * i;
    for (int k = 0; k < kVec; k++) to[2 * k] = rounded[k];  // the others are of another position: maybe of another thread
  }
}

inline void write_keys(const float* x, int cols, bool wide, void* out) {
  for (int i = 0; wide && i < cols; i++) static_cast<float*>(out)[static_cast<size_t>(i) * kBlock] = x[i];
  for (int i = 0; !wide && i < cols; i += kVec) {
    const int count = cols - i < kVec ? cols - i : kVec;
    uint16_t rounded[kVec];
    store(rounded, count < kVec ? load_some(x + i, count) : load(x + i));
    uint16_t* to = static_cast<uint16_t*>(out) + static_cast<size_t>(i) * kBlock;
    for (int k = 0; k < count; k += 2) std::memcpy(to + k * kBlock, rounded + k, 4);
  }
}

constexpr int kSearched = 512;  // columns whose maximum is found before anything looks for its place

// Only columns that hold the maximum are read again.
inline Peak peak(const float* x, int cols) {
  const float lowest = -HUGE_VALF;
  Peak found{lowest, 0};
  Vec odd = set(0);  // NaN where a column is infinite or NaN
  for (int first = 0; first < cols; first += kSearched) {
    const int end = cols - first < kSearched ? cols : first + kSearched;
    Vec best = set(lowest);
    int i = first;
    for (; i + kVec <= end; i += kVec) {
      const Vec here = load(x + i);
      best = larger(best, here);
      odd = madd(here, set(0), odd);
    }
    if (i < end) {
      const Vec rest = load_some(x + i, end - i);
      best = larger(best, only(rest, 0, end - i, lowest));
      odd = madd(rest, set(0), odd);
    }
    const float value = largest(best);
    if (value > found.value) found = {value, first};
  }
  if (found.value > lowest)
    while (x[found.at] != found.value) found.at++;
  if (sum(odd) != 0)
    for (int i = 0; i < cols; i++)
      if (x[i] != x[i]) return {x[i], i};
  return found;
}

constexpr RowOps kTable = {embed,        add_to,     rms_norm, rotate, gate, cap_at,
                           write_values, write_keys, attend,   peak};

}  // namespace slipstream::SLIPSTREAM_VARIANT
