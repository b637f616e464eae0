// How fast this machine reads memory: the bound of a product with one row.
#pragma once

#include <cstddef>

namespace slipstream {

// Bytes per second of the best of `tries` streaming reads of `bytes` bytes by all threads of the pool.
double read_bandwidth(size_t bytes, int tries);

}  // namespace slipstream
