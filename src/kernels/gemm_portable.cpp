// The product for any processor: plain C++, four floats at a time.
#include <cstdint>
#include <cstring>

namespace slipstream {
namespace {

typedef float Four __attribute__((vector_size(16)));

// Half floats: the exponent moves by 112; what was infinite or no number stays so.
inline Four halves(const uint8_t* from) {
  typedef uint16_t Halves __attribute__((vector_size(8)));
  typedef uint32_t Words __attribute__((vector_size(16)));
  Halves bits;
  std::memcpy(&bits, from, sizeof bits);
  const Words half = __builtin_convertvector(bits, Words), special = (half & 0x7c00) == 0x7c00 ? Words{} + 0x7f800000u : Words{};
  const Four scaled = Four((half & 0x7fff) << 13) * 5.192296858534828e33f;  // 2^112
  return Four(Words(scaled) | special | (half & 0x8000) << 16);
}

}  // namespace
}  // namespace slipstream

#define SLIPSTREAM_LANES 4
#define SLIPSTREAM_MADD(a, b, c) ((a) * (b) + (c))
#define SLIPSTREAM_HALVES(p) halves(p)
#define SLIPSTREAM_WORDS(p) __builtin_convertvector(read<Halves>(p), Words)
#define SLIPSTREAM_BYTES(p) __builtin_convertvector(__builtin_convertvector(read<Bytes>(p), Ints), Lanes)
#include "gemm_rows.h"

namespace slipstream {

const LevelTable* portable_table() { return &kFloatTable; }

}  // namespace slipstream
