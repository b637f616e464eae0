// What a decoder does to single rows, and attention: one table of functions per level, chosen at run time.
//
// Rows are float32. Every function is deterministic in its own arguments alone. Matrix products are in gemm.h.
#pragma once

#include <cstdint>

namespace slipstream {

enum class Activation : int { silu, gelu_tanh };

constexpr int kBlock = 16;  // positions of one block of the key cache

// Where one row's keys are. Positions begin..end are visible (the row's own is the last); those below `direct` lie at
// their own place in the cache, position p from there on at place direct + path[p - direct].
struct Sight {
  int end = 0, direct = 0;
  const int* path = nullptr;
};

// Attention of a few rows of one sequence, over one key head, for the query heads that share it.
struct AttentionTask {
  const void* keys;  // a head's: kv_cache.h
  const void* values;
  bool wide;           // float32, else bfloat16
  int head_dim, value_stride;
  int window;  // 0: all
  float scale;
  int rows, heads;  // heads at most kTaskHeads, queries (rows * heads) at most kTaskQueries
  const Sight* sights;
  const float* queries;  // row r, head h at queries + r * query_stride + h * head_dim
  int query_stride;
  float* out;  // laid out likewise
  int out_stride;
  float* scratch;  // attention_scratch() floats
};

constexpr int kTaskHeads = 8;
constexpr int kTaskQueries = 64;
constexpr int kAttentionSpan = 128;  // positions between two updates of the running maximum
constexpr int kMaxHeadDim = 512;
// Floats of scratch for any task with drafts of at most so many nodes.
int attention_scratch(int head_dim, int max_nodes);

// Where a row is highest, and how high: the first place on a tie; NaN if it holds any.
struct Peak {
  float value;
  int at;
};

struct RowOps {
  // out = row * scale, from bfloat16
  void (*embed)(const uint16_t* row, int cols, float scale, float* out);
  void (*add)(float* h, const float* x, int cols);
  // out = x / rms(x) * weight; out may be x
  void (*rms_norm)(const float* x, const float* weight, float eps, int cols, float* out);
  // rotates the halves of one head by the angles of its position, in place
  void (*rotate)(float* head, const float* cos, const float* sin, int half);
  // out = activation(gate) * up
  void (*gate)(Activation activation, const float* gate, const float* up, int cols, float* out);
  // x = tanh(x / cap) * cap
  void (*cap)(float* x, float cap, int cols);
  // rounds a head's value of one place to the cache, padding with zeros to a multiple of 16
  void (*write_values)(const float* x, int cols, bool wide, void* out);
  // the same for its key, padding to whole pairs
  void (*write_keys)(const float* x, int cols, bool wide, void* out);
  void (*attend)(const AttentionTask& task);
  Peak (*peak)(const float* x, int cols);
};

// The table for the level in use (cpu.h).
const RowOps& row_ops();

extern const RowOps kRowOpsPortable;
#if defined(__x86_64__)
extern const RowOps kRowOpsAvx2, kRowOpsAvx512;
#endif

}  // namespace slipstream
