// Sixteen floats at a time, in the widest registers the including file is compiled for.
//
// Every operation is spelled out (no contraction, no reordering), so an expression has the same bits wherever it
// stands: that is what keeps a row's result apart from its neighbours. Each file that includes this gets its own copy
// under SLIPSTREAM_VARIANT, since files of several levels are linked together.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define SLIPSTREAM_VARIANT lanes16
#define SLIPSTREAM_LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define SLIPSTREAM_VARIANT lanes8
#define SLIPSTREAM_LANES 8
#else
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#define SLIPSTREAM_VARIANT lanes4
#define SLIPSTREAM_LANES 4
#endif

namespace slipstream::SLIPSTREAM_VARIANT {

constexpr int kVec = 16;
constexpr int kLanes = SLIPSTREAM_LANES;
constexpr int kParts = kVec / kLanes;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

struct Vec {
  Floats part[kParts];
};

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "a register keeps its size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline Floats all(float x) { return x - Floats{}; }  // not plus: that would have to make +0 of -0

// Compilers widen and narrow 16-bit lanes in halves of registers unless told how.
inline Words widened(const uint16_t* p) {
#if SLIPSTREAM_LANES == 16
  return bits<Words>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif SLIPSTREAM_LANES == 8
  return bits<Words>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  Halves h;
  std::memcpy(&h, p, sizeof h);
  return __builtin_convertvector(h, Words);
#endif
}

inline Halves narrowed(Words w) {
#if SLIPSTREAM_LANES == 16
  return bits<Halves>(_mm512_cvtepi32_epi16(bits<__m512i>(w)));
#else
  return __builtin_convertvector(w, Halves);
#endif
}

inline Floats fused(Floats a, Floats b, Floats c) {  // a * b + c, rounded once where the machine can
#if SLIPSTREAM_LANES == 16
  return bits<Floats>(_mm512_fmadd_ps(bits<__m512>(a), bits<__m512>(b), bits<__m512>(c)));
#elif SLIPSTREAM_LANES == 8
  return bits<Floats>(_mm256_fmadd_ps(bits<__m256>(a), bits<__m256>(b), bits<__m256>(c)));
#elif defined(__ARM_NEON)
  return bits<Floats>(vfmaq_f32(bits<float32x4_t>(c), bits<float32x4_t>(a), bits<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}

// e^x to about 2 units in the last place; 0 below -87.3, capped above 88; NaN stays NaN.
inline Floats exp_of(Floats x) {
  const Floats low = all(-87.3f), high = all(88.0f), magic = all(12582912.0f);  // 1.5 * 2^23: rounds to integer
  Floats y = x < low ? low : x;
  y = y > high ? high : y;
  Floats shifted = fused(y, all(1.44269504f), magic);
  Floats n = shifted - magic;
  Floats r = fused(n, all(-0.693359375f), y);
  r = fused(n, all(2.12194440e-4f), r);
  Floats p = all(1.0f / 720);
  p = fused(p, r, all(1.0f / 120));
  p = fused(p, r, all(1.0f / 24));
  p = fused(p, r, all(1.0f / 6));
  p = fused(p, r, all(0.5f));
  p = fused(p, r, all(1.0f));
  p = fused(p, r, all(1.0f));
  Words scale = (bits<Words>(shifted) << 23) + (127u << 23);
  return x < low ? Floats{} : p * bits<Floats>(scale);
}

inline Words to_bfloat(Floats x) {  // nearest, ties to even; NaN stays NaN
  Words u = bits<Words>(x);
  Words rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return x == x ? rounded : Words{} + 0x7fc0u;
}

#define SLIPSTREAM_EACH for (int i = 0; i < kParts; i++)

inline Vec set(float x) {
  Vec v;
  SLIPSTREAM_EACH v.part[i] = all(x);
  return v;
}
// Part by part: as a whole, 16 bytes at a time would go through memory, which a wider read then has to wait for.
inline Vec load(const float* p) {
  Vec v;
  SLIPSTREAM_EACH std::memcpy(&v.part[i], p + i * kLanes, sizeof v.part[i]);
  return v;
}
inline Vec load(const uint16_t* p) {  // bfloat16
  Vec v;
  SLIPSTREAM_EACH v.part[i] = bits<Floats>(widened(p + i * kLanes) << 16);
  return v;
}
// Sixteen pairs of bfloat16 numbers: the first of each, and the second.
struct Pairs {
  Vec first, second;
};
inline Pairs load_pairs(const uint16_t* p) {
  Pairs v;
  SLIPSTREAM_EACH {
    Words w;
    std::memcpy(&w, p + 2 * i * kLanes, sizeof w);
    v.first.part[i] = bits<Floats>(w << 16);
    v.second.part[i] = bits<Floats>(w & 0xffff0000u);
  }
  return v;
}
inline void store(float* p, const Vec& v) {
  SLIPSTREAM_EACH std::memcpy(p + i * kLanes, &v.part[i], sizeof v.part[i]);
}
inline void store(uint16_t* p, const Vec& v) {  // bfloat16
  SLIPSTREAM_EACH {
    Halves h = narrowed(to_bfloat(v.part[i]));
    std::memcpy(p + i * kLanes, &h, sizeof h);
  }
}
inline Vec add(Vec a, const Vec& b) {
  SLIPSTREAM_EACH a.part[i] += b.part[i];
  return a;
}
inline Vec mul(Vec a, const Vec& b) {
  SLIPSTREAM_EACH a.part[i] *= b.part[i];
  return a;
}
inline Vec div(Vec a, const Vec& b) {
  SLIPSTREAM_EACH a.part[i] /= b.part[i];
  return a;
}
inline Vec madd(const Vec& a, const Vec& b, Vec c) {
  SLIPSTREAM_EACH c.part[i] = fused(a.part[i], b.part[i], c.part[i]);
  return c;
}
inline Vec larger(Vec a, const Vec& b) {  // a NaN in b is passed over
  SLIPSTREAM_EACH a.part[i] = b.part[i] > a.part[i] ? b.part[i] : a.part[i];
  return a;
}
inline Vec smaller(Vec a, const Vec& b) {
  SLIPSTREAM_EACH a.part[i] = b.part[i] < a.part[i] ? b.part[i] : a.part[i];
  return a;
}
inline Vec nearest(Vec a) {  // integer, ties to even; for numbers below 2^22
  SLIPSTREAM_EACH a.part[i] = (a.part[i] + all(12582912.0f)) - all(12582912.0f);
  return a;
}
inline Vec exp(Vec a) {
  SLIPSTREAM_EACH a.part[i] = exp_of(a.part[i]);
  return a;
}
// Lanes first.. up to end of v, and `other` elsewhere.
inline Vec only(Vec v, int first, int end, float other) {
  SLIPSTREAM_EACH {
    Ints lane;
    for (int k = 0; k < kLanes; k++) lane[k] = i * kLanes + k;
    Ints inside = (lane >= first) & (lane < end);
    v.part[i] = inside ? v.part[i] : all(other);
  }
  return v;
}

#undef SLIPSTREAM_EACH

// Halves are folded onto each other, registers first: the same tree for every width.
inline float sum(Vec v) {
  for (int width = kParts / 2; width; width /= 2)
    for (int i = 0; i < width; i++) v.part[i] += v.part[i + width];
  float x[kLanes];
  std::memcpy(x, v.part, sizeof x);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; i++) x[i] += x[i + width];
  return x[0];
}
inline float largest(Vec v) {
  for (int width = kParts / 2; width; width /= 2)
    for (int i = 0; i < width; i++) v.part[i] = v.part[i + width] > v.part[i] ? v.part[i + width] : v.part[i];
  float x[kLanes];
  std::memcpy(x, v.part, sizeof x);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; i++) x[i] = x[i + width] > x[i] ? x[i + width] : x[i];
  return x[0];
}

// The last few of an array: the missing lanes read as 0 and are not written.
template <class T>
inline Vec load_some(const T* p, int count) {
  T some[kVec] = {};
  std::memcpy(some, p, count * sizeof(T));
  return load(some);
}
template <class T>
inline void store_some(T* p, const Vec& v, int count) {
  T some[kVec];
  store(some, v);
  std::memcpy(p, some, count * sizeof(T));
}

}  // namespace slipstream::SLIPSTREAM_VARIANT
