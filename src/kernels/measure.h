// What the products are measured against, and with: how fast this machine reads memory, how long a pass takes.
#pragma once

#include <cstddef>
#include <vector>

#include "gemm.h"

namespace slipstream {

// Bytes per second of the best of `tries` streaming reads of `bytes` bytes by all threads of the pool.
double read_bandwidth(size_t bytes, int tries);

// Seconds of one pass of `rows` rows over the matrices in turn, in one parallel region, as a network would: every
// matrix has its activations prepared and a barrier on each side.
double pass_seconds(const std::vector<const Matrix*>& matrices, int rows);

}  // namespace slipstream
