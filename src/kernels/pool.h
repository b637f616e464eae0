// The threads of the kernels: one parallel region at a time, with barriers inside.
// Our own, so that nothing meets the OpenMP runtime of another library. Workers spin briefly, then sleep.
#pragma once

#include <cstdint>
#include <functional>

#include "gemm.h"

namespace slipstream {

class Tasks;

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
  friend class Tasks;
  Pool();
  struct State;
  State* state_;
};

// Tasks 0 .. n - 1 of a region, shared out as threads get to them: each begins with a part of its own, takes a few at a time
// from its front, and when none are left a few from the end of another's, so that a thread on a slower or busy
// processor holds nobody up for long. Every thread of the region makes the same Tasks in the same order.
//
//   for (Tasks tasks(n, 1, slice); tasks.next();) work(tasks.now());
class Tasks {
 public:
  Tasks(int n, int least, Slice slice);  // least: tasks that are worth taking at once
  bool next();                           // takes some; false: none are left
  Range now() const { return now_; }

 private:
  Range left(uint64_t seen, int whose) const;
  bool take(int whose);

  const int n_, least_;
  const Slice slice_;
  Pool::State& state_;
  uint16_t turn_ = 0;
  Range now_{0, 0};
};

}  // namespace slipstream
