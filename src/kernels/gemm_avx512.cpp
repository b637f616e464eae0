// The product with AVX-512 dot products of bfloat16 pairs (BF16) and byte quads (VNNI), row by row.
#include "level.h"

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)

#include "quads_avx512.h"
#include "rounding_avx512.h"
#include "rows_avx512.h"

namespace slipstream {
namespace {

// bfloat16 weights: the sums stay in registers over all groups.
template <int kCount>
SLIPSTREAM_INLINE void plain_rows(const Product& job, int block, int row) {
  const uint8_t* codes = job.codes + static_cast<size_t>(block) * job.groups * layout::kBf16Group;
  const size_t chunk = static_cast<size_t>(row / 16) * job.groups;
  const uint8_t* x = job.values + chunk * layout::kBf16Rows + row % 16 * 64;
  __m512 c[kCount][2];
  for (int r = 0; r < kCount; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
  for (int g = 0; g < job.groups; g++, codes += layout::kBf16Group, x += layout::kBf16Rows) {
    prefetch<layout::kBf16Group>(codes);
    dot_pairs<kCount>(codes, x, c);
  }
  alignas(64) float totals[kCount * 32];
  for (int r = 0; r < kCount; r++)
    for (int t = 0; t < 2; t++) _mm512_store_ps(totals + r * 32 + t * 16, c[r][t]);
  write_totals(job, block, row, kCount, totals);
}

void plain(const Product& job) {
  for (int block = job.first; block < job.last; block++) {
    int row = 0;
    for (; row + kTogether <= job.rows; row += kTogether) plain_rows<kTogether>(job, block, row);
    for (; row < job.rows; row++) plain_rows<1>(job, block, row);
  }
}

const LevelTable kTable = {round_bf16_rows,
                           round_byte_rows,
                           plain,
                           by_pairs<HalfGroups>,
                           by_pairs<SuperGroups>,
                           by_pairs<EightGroups<true>>,
                           by_quads<HalfGroups>,
                           by_quads<SuperGroups>,
                           by_quads<EightGroups<false>>};

}  // namespace

const LevelTable* avx512_table() { return &kTable; }

}  // namespace slipstream

#else

namespace slipstream {

const LevelTable* avx512_table() { return nullptr; }

}  // namespace slipstream

#endif
