// Which instructions run: levels from best to plain, found by asking the processor, or forced.
#pragma once

#include <string>
#include <vector>

namespace slipstream {

// Each x86 level includes those below it, but for avxvnni, byte dot products without AVX-512. avx512 needs BF16 and VNNI;
// amx its bfloat16 and 8-bit tiles. dotprod is neon with byte dot products.
enum class Level : int { portable, neon, dotprod, avx2, avxvnni, avx512, amx };

const char* name(Level level);
bool available(Level level);
std::vector<Level> available_levels();  // best first; portable is always there

// The level in use: the best one, or the one that SLIPSTREAM_KERNELS names.
// Throws std::invalid_argument for an unknown or unavailable name.
Level level();
void set_level(const std::string& name);

// The table for the level in use, of those compiled as NamePortable, NameAvx2 and NameAvx512; on aarch64 the portable one's
// vectors are NEON's.
#if defined(__x86_64__)
#define SLIPSTREAM_AT_LEVEL(Name) \
  (level() >= Level::avx512 ? Name##Avx512 : level() >= Level::avx2 ? Name##Avx2 : Name##Portable)
#else
#define SLIPSTREAM_AT_LEVEL(Name) Name##Portable
#endif

// Asks the operating system, once for the process, to let it use tiles. False where it may not.
bool permit_tiles();

}  // namespace slipstream
