// A softmax that is kept up to date span by span (Milakov and Gimelshein 1805.02867), in AVX-512 registers, in powers of
// two.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "layout.h"
#include "row_ops.h"

namespace slipstream {
namespace {

// 2^x to 1e-7; NaN stays NaN.
SLIPSTREAM_INLINE __m512 power(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // of 0 to 1; scalef rounds down too
  __m512 p = _mm512_set1_ps(1.8775766e-3f);  // least relative error
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.9893406e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5826318e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4015361e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9315308e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);
}

SLIPSTREAM_INLINE __mmask16 lanes(int first, int end) {  // of sixteen; limits may lie outside
  const int low = first < 0 ? 0 : first, high = end > 16 ? 16 : end;
  return low >= high ? 0 : static_cast<__mmask16>((1u << high) - (1u << low));
}

// Scores begin .. end of a span [kAttentionSpan] times `scale` (of a power of two) become weights in bfloat16 under the
// highest so far, which `peak` keeps; [0, 16) of `total` grow by their sum. The others' weights are zero; part i, 32 of them,
// goes to weights + i * stride. Returns what sums made before must be multiplied by.
SLIPSTREAM_INLINE float weigh_span(const float* scores, int begin, int end, float scale, float& peak, float* total,
                                   uint16_t* weights, int stride) {
  constexpr int kVectors = kAttentionSpan / 16;
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 x[kVectors], top = lowest;
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; i++) {
    x[i] = _mm512_mask_loadu_ps(lowest, lanes(begin - i * 16, end - i * 16), scores + i * 16);
    top = _mm512_max_ps(x[i], top);  // NaN is passed over
  }
  const float before = peak, here = _mm512_reduce_max_ps(top) * scale;
  peak = before > here ? before : here;
  const float fade = peak == before ? 1.0f : _mm512_cvtss_f32(power(_mm512_set1_ps(before - peak)));
  const __m512 factor = _mm512_set1_ps(scale), shift = _mm512_set1_ps(peak);
  __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(total), _mm512_set1_ps(fade));
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; i++) {
    const __mmask16 seen = lanes(begin - i * 16, end - i * 16);
    __m256i rounded = _mm256_setzero_si256();
    if (seen) {
      const __m512 w = _mm512_maskz_mov_ps(seen, power(_mm512_fmsub_ps(x[i], factor, shift)));
      sum = _mm512_add_ps(sum, w);
      rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(w));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i / 2 * stride + i % 2 * 16), rounded);
  }
  _mm512_storeu_ps(total, sum);
  return fade;
}

}  // namespace
}  // namespace slipstream
