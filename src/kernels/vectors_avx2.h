// What the levels on 256-bit registers share: eight columns at a time, with FMA and F16C.
#pragma once

#include <immintrin.h>

#define SLIPSTREAM_LANES 8
#define SLIPSTREAM_MADD(a, b, c) Lanes(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)))
#define SLIPSTREAM_HALVES(p) Lanes(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))
#define SLIPSTREAM_BYTES(p) Lanes(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))))
#define SLIPSTREAM_WORDS(p) Words(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))
#define SLIPSTREAM_NOW(x) asm("" : "+x"(x))
#include "gemm_rows.h"
