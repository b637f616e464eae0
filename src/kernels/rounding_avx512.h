// The functions of rounding.h in AVX-512 registers: the same bits, one group of a row in two vectors.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "layout.h"
#include "level.h"

namespace slipstream {
namespace {

// One group of a row, zeros after the row's end.
struct Halves {
  __m512 low, high;
};

SLIPSTREAM_INLINE Halves read_group(const float* x, int cols, int group) {
  const int begin = group * 32, count = cols - begin;
  if (count >= 32) return {_mm512_loadu_ps(x + begin), _mm512_loadu_ps(x + begin + 16)};
  const uint32_t mask = (1u << count) - 1;
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x + begin),
          _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + begin + 16)};
}

// The order of additions of sum32.
SLIPSTREAM_INLINE float sum32(__m512 low, __m512 high) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(low), _mm512_extractf32x8_ps(low, 1));
  __m256 b = _mm256_add_ps(_mm512_castps512_ps256(high), _mm512_extractf32x8_ps(high, 1));
  __m256 parts = _mm256_add_ps(a, b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(parts), _mm256_extractf128_ps(parts, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

SLIPSTREAM_INLINE __m512i to_bf16(__m512 v) {  // in the high halves of the lanes
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512i u = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i near = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  __mmask16 broken = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_and_si512(_mm512_mask_or_epi32(near, broken, u, _mm512_set1_epi32(0x400000)), high);
}

SLIPSTREAM_INLINE void round_bf16_group(const Halves& v, uint16_t* out, float* factors) {
  __m512i low = to_bf16(v.low), high = to_bf16(v.high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 16), _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)));
  factors[1] = sum32(_mm512_castsi512_ps(low), _mm512_castsi512_ps(high));
}

SLIPSTREAM_INLINE void round_byte_group(const Halves& v, int8_t* out, float* factors) {
  constexpr float kNothing = 7.9e-31f;  // 2^-100, as in rounding.h
  const __m512 low = _mm512_abs_ps(v.low), high = _mm512_abs_ps(v.high), infinite = _mm512_set1_ps(__builtin_inff());
  const float largest = _mm512_reduce_max_ps(_mm512_max_ps(low, high));
  const bool finite = !(_mm512_cmp_ps_mask(low, infinite, _CMP_NLT_UQ) | _mm512_cmp_ps_mask(high, infinite, _CMP_NLT_UQ));
  const bool usable = finite && largest >= kNothing;
  const __m512 inverse = _mm512_set1_ps(usable ? 127 / largest : 0);
  const __mmask16 keep = usable ? 0xffff : 0;
  __m512i a = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(v.low, inverse));  // nearest, ties to even
  __m512i b = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(v.high, inverse));
  const int32_t total = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
  const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);  // layout::kQuad
  __m128i* to = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(to, _mm_shuffle_epi8(_mm512_cvtepi32_epi8(a), order));
  _mm_storeu_si128(to + 1, _mm_shuffle_epi8(_mm512_cvtepi32_epi8(b), order));
  const float scale = usable ? largest / 127 : finite ? 0.0f : __builtin_nanf("");
  factors[0] = scale;
  factors[1] = scale * static_cast<float>(total);
  const int32_t start = layout::kStart - 128 * total;
  std::memcpy(factors + 2, &start, sizeof start);
}

template <bool kBytes>
SLIPSTREAM_INLINE void round_tasks(const Rounding& job) {
  int local = job.first / job.groups, group = job.first % job.groups;
  for (int task = job.first; task < job.last; task++) {
    const int row = job.row + local;
    const size_t place = static_cast<size_t>(row / 16) * job.groups + group;
    const Halves v = read_group(job.x + static_cast<size_t>(local) * job.stride, job.cols, group);
    float* factors = job.factors + place * layout::kFactors + row % 16 * layout::kRowFactors;
    uint8_t* values = job.values + place * (kBytes ? layout::kByteRows : layout::kBf16Rows);
    if (kBytes)
      round_byte_group(v, reinterpret_cast<int8_t*>(values) + row % 16 * 32, factors);
    else
      round_bf16_group(v, reinterpret_cast<uint16_t*>(values) + row % 16 * 32, factors);
    if (++group == job.groups) group = 0, local++;
  }
}

void round_bf16_rows(const Rounding& job) { round_tasks<false>(job); }
void round_byte_rows(const Rounding& job) { round_tasks<true>(job); }

}  // namespace
}  // namespace slipstream
