#include "cpu.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace slipstream {
namespace {

constexpr Level kBestFirst[] = {Level::amx,     Level::avx512, Level::avxvnni, Level::avx2,
                                Level::dotprod, Level::neon,   Level::portable};

struct Features {
  bool dotprod = false, avx2 = false, avxvnni = false, avx512 = false, amx = false;
};

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned part) {
  Registers r;
  __get_cpuid_count(leaf, part, &r.a, &r.b, &r.c, &r.d);
  return r;
}

bool bit(unsigned word, int index) { return (word >> index) & 1; }

// Register state that the operating system saves: bits of XCR0.
uint64_t saved_state() {
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

Features look() {
  Features found;
  Registers one = cpuid(1, 0), seven = cpuid(7, 0), more = cpuid(7, 1);
  if (!bit(one.c, 27)) return found;  // no xgetbv
  uint64_t state = saved_state();
  bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6, tiles = (state & 0x60000) == 0x60000;
  bool fma = bit(one.c, 12), f16c = bit(one.c, 29);
  found.avx2 = ymm && fma && f16c && bit(seven.b, 5);
  found.avxvnni = found.avx2 && bit(more.a, 4);
  bool foundation = bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);  // F DQ BW VL
  found.avx512 = found.avx2 && zmm && foundation && bit(seven.c, 11) && bit(more.a, 5);            // VNNI BF16
  found.amx = found.avx512 && tiles && bit(seven.d, 22) && bit(seven.d, 24) && bit(seven.d, 25);   // BF16 TILE INT8
  found.amx = found.amx && permit_tiles();
  return found;
}

#elif defined(__aarch64__)

Features look() {
  Features found;
#if defined(__linux__)
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  found.dotprod = getauxval(AT_HWCAP) & kDotProducts;
#elif defined(__APPLE__)
  found.dotprod = true;
#endif
  return found;
}

#else

Features look() { return {}; }

#endif

const Features& features() {
  static const Features found = look();
  return found;
}

template <class Levels>
std::string names(const Levels& levels) {
  std::string all;
  for (Level each : levels) all += std::string(all.empty() ? "" : ", ") + name(each);
  return all;
}

Level parse(const std::string& text) {
  for (Level each : kBestFirst)
    if (text == name(each)) {
      if (available(each)) return each;
      throw std::invalid_argument("kernel level '" + text + "' is not available on this machine; available: " + names(available_levels()));
    }
  throw std::invalid_argument("kernel level '" + text + "' is unknown; known: " + names(kBestFirst));
}

Level first() {
  const char* forced = std::getenv("SLIPSTREAM_KERNELS");
  return forced && *forced ? parse(forced) : available_levels().front();
}

std::atomic<int> chosen{-1};

}  // namespace

const LevelTable* table_of(Level level) {
  switch (level) {
    case Level::amx: return amx_table();
    case Level::avx512: return avx512_table();
    case Level::avxvnni: return avxvnni_table();
    case Level::avx2: return avx2_table();
    case Level::dotprod: return dotprod_table();
    case Level::neon: return neon_table();
    default: return portable_table();
  }
}

const PromptTable* prompt_table_of(Level level) { return level == Level::amx ? amx_prompt_table() : nullptr; }

const char* name(Level level) {
  constexpr const char* kNames[] = {"portable", "neon", "dotprod", "avx2", "avxvnni", "avx512", "amx"};
  return kNames[static_cast<int>(level)];
}

bool available(Level level) {
  if (!table_of(level)) return false;
  switch (level) {
    case Level::amx: return features().amx;
    case Level::avx512: return features().avx512;
    case Level::avxvnni: return features().avxvnni;
    case Level::avx2: return features().avx2;
    case Level::dotprod: return features().dotprod;
    default: return true;
  }
}

std::vector<Level> available_levels() {
  std::vector<Level> all;
  for (Level each : kBestFirst)
    if (available(each)) all.push_back(each);
  return all;
}

Level level() {
  int now = chosen.load(std::memory_order_relaxed);
  if (now < 0) chosen.store(now = static_cast<int>(first()), std::memory_order_relaxed);
  return static_cast<Level>(now);
}

void set_level(const std::string& name) { chosen.store(static_cast<int>(parse(name)), std::memory_order_relaxed); }

bool permit_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
#else
  return false;
#endif
}

}  // namespace slipstream
