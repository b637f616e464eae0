// What a level offers: one function per kind, called with plain numbers and pointers. Nothing here is compiled code, so
// files built for different instruction sets can include it without sharing instructions.
#pragma once

#include <cstdint>

namespace slipstream {

// Rows to round: tasks first..last of rows * groups, row by row.
struct Rounding {
  const float* x;
  uint8_t* values;
  float* factors;
  int stride, cols, groups, row;  // row: index of the first row of x among the prepared rows
  int first, last;
};

// Blocks of 32 outputs to compute, first..last.
struct Product {
  const uint8_t* codes;
  const float* bias;  // or null
  const uint8_t* values;
  const float* factors;
  float* y;
  int rows, groups, out, stride;
  int first, last;
};

struct LevelTable {
  void (*round_bf16)(const Rounding&);
  void (*round_bytes)(const Rounding&);
  void (*bf16)(const Product&);
  void (*half)(const Product&);          // 4-bit codes, half-float scales; bfloat16 activations
  void (*super)(const Product&);         // 4-bit codes, super-block scales
  void (*eight)(const Product&);         // 8-bit codes
  void (*half_bytes)(const Product&);    // the same with 8-bit activations
  void (*super_bytes)(const Product&);
  void (*eight_bytes)(const Product&);
};

// Products for the rows of a prompt, by how weights are stored: weights rounded to bfloat16, activations too.
struct PromptTable {
  void (*bf16)(const Product&);
  void (*half)(const Product&);
  void (*super)(const Product&);
  void (*eight)(const Product&);
};

const LevelTable* portable_table();
const LevelTable* avx2_table();    // null where the compiler had no such target, as below
const LevelTable* avxvnni_table();
const LevelTable* neon_table();
const LevelTable* dotprod_table();
const LevelTable* avx512_table();
const LevelTable* amx_table();
const PromptTable* amx_prompt_table();

}  // namespace slipstream
