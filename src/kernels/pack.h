// Lay weights out for the kernels, once: from float32 or bfloat16 rows, or from the blocks of a GGUF tensor.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace slipstream {

enum class Source : int { float32, bfloat16, gguf_q4_0, gguf_q4_1, gguf_q4_k, gguf_q8_0, gguf_q5_0, gguf_q6_k };

// Bytes of one row of `cols` values; throws std::invalid_argument where whole blocks do not fill it.
size_t row_bytes(Source source, int cols);

// How the scales of a matrix of this kind are kept when its rows come from this source.
Scales scales_for(Kind kind, Source source);

// An empty matrix: every weight 0. `bias` [out] or null is copied.
Matrix make_matrix(Kind kind, Scales scales, int out, int in, const float* bias);

// Packs `rows` rows, contiguous in `data`, as outputs first.. of the matrix. GGUF 4-bit codes go to q4 and q4a8
// unchanged, Q8_0 codes to q8 and w8a8; all else is rounded to the kind. Throws std::invalid_argument for a pair
// that does not fit. Threads may pack the same matrix at once when their ranges share no block of 32 outputs.
void pack_rows(Matrix& matrix, Source source, const void* data, int first, int rows);

// The value each packed weight stands for, [out, in] float32: what the kernels multiply by.
void unpack(const Matrix& matrix, float* values);

// The same of one output, [in] float32.
void unpack_row(const Matrix& matrix, int output, float* values);

}  // namespace slipstream
