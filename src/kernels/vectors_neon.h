// What the levels of 64-bit Arm share: four columns at a time, with fused multiply-add.
#pragma once

#include <arm_neon.h>

#define SLIPSTREAM_LANES 4
#define SLIPSTREAM_MADD(a, b, c) Lanes(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)))
#define SLIPSTREAM_HALVES(p) Lanes(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))))
#define SLIPSTREAM_WORDS(p) Words(vmovl_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))))
#define SLIPSTREAM_BYTES(p) __builtin_convertvector(__builtin_convertvector(read<Bytes>(p), Ints), Lanes)
#define SLIPSTREAM_NOW(x) asm("" : "+w"(x))
#include "gemm_rows.h"
