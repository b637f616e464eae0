// The threads of the kernels: one parallel region at a time, with barriers inside.
// Our own, so that nothing meets the OpenMP runtime of another library. Workers spin briefly, then sleep.
#pragma once

#include <functional>

#include "gemm.h"

namespace slipstream {

class Pool {
 public:
  static Pool& instance();

  int threads() const;
  void set_threads(int count);  // waits for a running region; at least 1

  // Runs work once in every thread, the caller as slice 0, and returns when all are done. Regions of several callers
  // take turns. Work must not throw and must not start a region.
  void run(const std::function<void(Slice)>& work);

  // Waits, inside a region, until every thread of it is here.
  void barrier();

 private:
  Pool();
  struct State;
  State* state_;
};

}  // namespace slipstream
