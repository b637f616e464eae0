#include "gemm.h"

#include "dispatch.h"
#include "layout.h"

namespace slipstream {
namespace {

constexpr int kFetched = 2048;  // bytes: about as much as can be on its way at once

size_t chunks(int rows) { return (rows + kRows - 1) / kRows; }

int groups_of(int cols) { return (cols + kGroup - 1) / kGroup; }

void round_tasks(Kind kind, const Rounding& job) {
  const LevelTable& table = *table_of(level());
  (eight_bit_activations(kind) ? table.round_bytes : table.round_bf16)(job);
}

using Multiply = void (*)(const Product&);

Multiply choose(const LevelTable& table, Kind kind, Scales scales) {
  bool super = scales == Scales::super;
  switch (kind) {
    case Kind::bf16: return table.bf16;
    case Kind::q4: return super ? table.super : table.half;
    case Kind::q8: return table.eight;
    case Kind::q4a8: return super ? table.super_bytes : table.half_bytes;
    default: return table.eight_bytes;
  }
}

Multiply choose(const PromptTable& table, Kind kind, Scales scales) {
  switch (kind) {
    case Kind::bf16: return table.bf16;
    case Kind::q4:
    case Kind::q4a8: return scales == Scales::super ? table.super : table.half;
    default: return table.eight;
  }
}

Product product_of(const Matrix& matrix, const Input& input, int rows, float* y, int stride, Range blocks) {
  return {matrix.codes.as(), matrix.bias.as<float>(), input.values.as(), input.factors.as<float>(), y,
          rows, matrix.groups(), matrix.out, stride, blocks.begin, blocks.end};
}

}  // namespace

bool eight_bit_activations(Kind kind) { return kind == Kind::q4a8 || kind == Kind::w8a8; }

Kind form_of(Kind kind, Role role) {
  return role == Role::prompt && prompt_table_of(level()) ? Kind::bf16 : kind;
}

void Input::reserve(int rows, int cols) {
  size_t places = chunks(rows) * groups_of(cols);
  values.reserve(places * layout::kBf16Rows);
  factors.reserve(places * layout::kFactors * sizeof(float));
}

void prepare(Kind kind, const float* x, int stride, int rows, int cols, Input& input, Slice slice) {
  // a thread's groups of all rows: rows of a group share cache lines
  for (int row = 0; row < rows; row++)
    prepare_groups(kind, x + static_cast<size_t>(row) * stride, row, cols, share(groups_of(cols), slice), input);
}

void prepare_row(Kind kind, const float* x, int row, int cols, Input& input) {
  prepare_groups(kind, x, row, cols, {0, groups_of(cols)}, input);
}

void prepare_groups(Kind kind, const float* x, int row, int cols, Range groups, Input& input) {
  round_tasks(kind, {x, input.values.as(), input.factors.as<float>(), cols, cols, groups_of(cols), row, groups.begin,
                     groups.end});
}

void fetch(const Matrix& matrix, Slice slice) {
  const size_t block = matrix.codes.bytes() / matrix.blocks();
  const uint8_t* codes = matrix.codes.as() + block * share(matrix.blocks(), slice).begin;
  for (int i = 0; i < kFetched; i += 64) __builtin_prefetch(codes + i, 0, 2);
}

void multiply_blocks(const Matrix& matrix, const Input& input, int rows, float* y, int stride, Range blocks) {
  choose(*table_of(level()), matrix.kind, matrix.scales)(product_of(matrix, input, rows, y, stride, blocks));
}

void multiply_prompt(const Matrix& matrix, const Input& input, int rows, float* y, int stride, Range blocks) {
  const PromptTable* own = prompt_table_of(level());
  if (!own) return multiply_blocks(matrix, input, rows, y, stride, blocks);
  choose(*own, matrix.kind, matrix.scales)(product_of(matrix, input, rows, y, stride, blocks));
}

}  // namespace slipstream
