// A product whose blocks the threads of a region share out.
#pragma once

#include "pool.h"

namespace slipstream {

// Writes y[row * stride + output] for the first `rows` prepared rows. All threads call; a barrier must follow.
inline void multiply(const Matrix& matrix, const Input& input, int rows, float* y, int stride, Role role, Slice slice) {
  const bool prompt = role == Role::prompt;
  for (Tasks tasks(matrix.blocks(), prompt ? kPromptBlocks : 1, slice); tasks.next();)
    (prompt ? multiply_prompt : multiply_blocks)(matrix, input, rows, y, stride, tasks.now());
}

}  // namespace slipstream
