// Linear maps with packed weights: y[row, out] = x[row, in] * weight[out, in] + bias[out].
//
// Comes in: weights packed once (pack.h) and float32 rows. Goes out: float32 rows. Row r of a call has the same bits for
// every number of rows and threads: each (row, output) goes through one order of operations, whoever its neighbours are.
// Rows of a prompt may have an arithmetic of their own (Role): a row's bits depend on its role, never on its company.
// No threads are made here: every thread of a parallel region (pool.h) calls with its own Slice, or blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "buffer.h"

namespace slipstream {

// How weights are stored, and what the activations are rounded to.
//   bf16  bfloat16 weights; bfloat16 activations
//   q4    4-bit codes, value code * d + m per group of 32 inputs; bfloat16 activations
//   q8    8-bit codes, value code * d per group of 32 inputs; bfloat16 activations
//   q4a8  weights as q4; activations rounded to 8 bits per group of 32
//   w8a8  weights as q8; activations rounded to 8 bits per group of 32
// Limits, far from any model: 8-bit activations whose group stays below 2^-100 count as zero, and q8 with activations
// above 1e25 may overflow.
enum class Kind : int { bf16, q4, q8, q4a8, w8a8 };

// What a row is: decoded (guesses, and what was committed from them), or read as part of a prompt. On levels that read
// prompts their own way, weights of every kind are rounded to bfloat16 numbers, which nothing scales per row, and
// activations too; on others the role means nothing.
enum class Role : int { decoded, prompt };

// How the d and m of 4-bit groups are kept: two half floats per group, or GGUF Q4_K's 6-bit multiples of two half
// floats per 256 inputs. Both are exact for what they hold.
enum class Scales : int { none, half, super };

constexpr int kGroup = 32;    // inputs that share a scale
constexpr int kColumns = 32;  // outputs of one packed block: the unit that threads share out
constexpr int kRows = 16;     // rows of one chunk of prepared activations
constexpr int kPromptBlocks = 8;  // blocks that a thread multiplies together in a prompt, at least: the first is widened with nothing beside it

struct Slice {
  int index = 0, count = 1;  // this thread, of how many
};

struct Range {
  int begin, end;
};

// The slice's part of n tasks: contiguous, complete and disjoint over the slices.
inline Range share(int n, Slice slice) {
  return {static_cast<int>(static_cast<int64_t>(n) * slice.index / slice.count),
          static_cast<int>(static_cast<int64_t>(n) * (slice.index + 1) / slice.count)};
}

struct Matrix {
  Kind kind = Kind::bf16;
  Scales scales = Scales::none;
  int out = 0, in = 0;
  Buffer codes;  // [blocks of 32 outputs][groups of 32 inputs], scales beside their codes: layout.h
  Buffer bias;   // float32, one per output and padding; empty without a bias

  int blocks() const { return (out + kColumns - 1) / kColumns; }
  int groups() const { return (in + kGroup - 1) / kGroup; }  // the last group is padded with zero weights
  size_t bytes() const { return codes.bytes() + bias.bytes(); }
};

// Activations prepared for a matrix: bf16, q4 and q8 share one form, q4a8 and w8a8 the other.
// The same prepared rows serve every matrix of that form with the same number of inputs.
struct Input {
  Buffer values;   // [chunks of 16 rows][groups][16 rows][32 inputs], bfloat16 or int8
  Buffer factors;  // [chunks of 16 rows][groups][16 rows][4]: scale (8-bit form), sum of what was rounded; rounding.h

  // Makes room; call before the region in which threads prepare (growing is not shared between threads).
  void reserve(int rows, int cols);
};

bool eight_bit_activations(Kind kind);

// The kind whose form of activations a matrix wants for rows of this role.
Kind form_of(Kind kind, Role role);

// Rounds rows x[row * stride + col] to the form of a kind: form_of. All threads call, each does its part; a barrier must follow before multiply.
void prepare(Kind kind, const float* x, int stride, int rows, int cols, Input& input, Slice slice);

// Rounds one row, x[col]: for a thread that has just computed it.
void prepare_row(Kind kind, const float* x, int row, int cols, Input& input);

// Rounds groups [begin, end) of one row whose columns there have just been computed.
void prepare_groups(Kind kind, const float* x, int row, int cols, Range groups, Input& input);

// Fetches the beginning of what a thread multiplies first, while it waits for what to multiply it with.
void fetch(const Matrix& matrix, Slice slice);

// Writes y[row * stride + output] for the first `rows` prepared rows and the outputs of blocks [begin, end), of kColumns each.
void multiply_blocks(const Matrix& matrix, const Input& input, int rows, float* y, int stride, Range blocks);

// The same for rows of a prompt, prepared in its form.
void multiply_prompt(const Matrix& matrix, const Input& input, int rows, float* y, int stride, Range blocks);

}  // namespace slipstream
