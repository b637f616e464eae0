// One group of 32 weights on its way from a source to the packed layout: codes and what they are multiplied by.
#pragma once

#include <cstdint>

#include "pack.h"

namespace slipstream {

struct GroupCodes {
  uint8_t four[32];   // 0..15
  int8_t eight[32];   // -127..127 (Q8_0: -128 too)
  uint16_t d, m;      // half floats: value = code * d + m
};

// What is done with the 32 values of a group: one table per level, chosen at run time, all with the same results.
struct GroupOps {
  void (*round_to_eight)(const float* values, GroupCodes& group);  // d = largest magnitude / 127
  // From smallest to largest, then fitted by least squares while that lowers the error.
  void (*round_to_four)(const float* values, GroupCodes& group);
  // What a Q8_0 or Q5_0 block stands for, or one of the 8 groups of a Q6_K block.
  void (*values_of_q8_0)(const uint8_t* block, float* values);
  void (*values_of_q5_0)(const uint8_t* block, float* values);
  void (*values_of_q6_k)(const uint8_t* block, int group, float* values);
};

// The table for the level in use (cpu.h).
const GroupOps& group_ops();

extern const GroupOps kGroupsPortable;
#if defined(__x86_64__)
extern const GroupOps kGroupsAvx2, kGroupsAvx512;
#endif

// Q4_0, Q4_1 and Q8_0 blocks of 32 as they are.
void read_q4_0(const uint8_t* block, GroupCodes& group);
void read_q4_1(const uint8_t* block, GroupCodes& group);
void read_q8_0(const uint8_t* block, GroupCodes& group);

// A Q4_K block of 256: the codes of 8 groups, two half floats (m negated, so that value = d * scale * code + m * min),
// and 6-bit factors for each group.
struct SuperCodes {
  uint8_t four[8][32];
  uint16_t d, m;
  uint8_t scale[8], min[8];
};
void read_q4_k(const uint8_t* block, SuperCodes& super);

}  // namespace slipstream
