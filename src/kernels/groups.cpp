#include "groups.h"

#include <cstring>

#include "cpu.h"
#include "half.h"

namespace slipstream {
namespace {

uint16_t load16(const uint8_t* from) { return static_cast<uint16_t>(from[0] | from[1] << 8); }

}  // namespace

const GroupOps& group_ops() { return SLIPSTREAM_AT_LEVEL(kGroups); }

void read_q4_0(const uint8_t* block, GroupCodes& group) {
  group.d = load16(block);
  group.m = half_of_float(-8 * float_of_half(group.d));
  for (int i = 0; i < 16; i++) {
    group.four[i] = block[2 + i] & 15;
    group.four[16 + i] = block[2 + i] >> 4;
  }
}

void read_q4_1(const uint8_t* block, GroupCodes& group) {
  group.d = load16(block);
  group.m = load16(block + 2);
  for (int i = 0; i < 16; i++) {
    group.four[i] = block[4 + i] & 15;
    group.four[16 + i] = block[4 + i] >> 4;
  }
}

void read_q8_0(const uint8_t* block, GroupCodes& group) {
  group.d = load16(block);
  std::memcpy(group.eight, block + 2, 32);
}

void read_q4_k(const uint8_t* block, SuperCodes& super) {
  super.d = load16(block);
  super.m = load16(block + 2) ^ 0x8000;
  const uint8_t* six = block + 4;  // 12 bytes: low six bits of groups 0-3, then groups 4-7 in nibbles and high bits
  for (int g = 0; g < 4; g++) {
    super.scale[g] = six[g] & 63;
    super.min[g] = six[g + 4] & 63;
    super.scale[g + 4] = static_cast<uint8_t>((six[g + 8] & 15) | (six[g] >> 6) << 4);
    super.min[g + 4] = static_cast<uint8_t>((six[g + 8] >> 4) | (six[g + 4] >> 6) << 4);
  }
  for (int pair = 0; pair < 4; pair++)
    for (int i = 0; i < 32; i++) {
      uint8_t both = block[16 + pair * 32 + i];
      super.four[2 * pair][i] = both & 15;
      super.four[2 * pair + 1][i] = both >> 4;
    }
}

}  // namespace slipstream
