// Tasks of a region: each is worked once, however late a thread comes, and nobody waits for a slow one.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "pool.h"

using namespace slipstream;

namespace {

struct Set {
  int n, least;
  std::unique_ptr<std::atomic<int>[]> worked;
};

std::vector<Set> sets(int count) {
  std::vector<Set> all;
  uint32_t state = 1;
  for (int i = 0; i < count; i++) {
    state = state * 1664525u + 1013904223u;
    const int n = static_cast<int>(state >> 24) % (i % 100 ? 9 : 300);
    all.push_back({n, static_cast<int>(state >> 12) % 9 + 1, std::make_unique<std::atomic<int>[]>(n + 1)});
  }
  return all;
}

// One set after the other, with no barrier between them; now and then a thread is late.
bool every_task_once(int threads, int count) {
  Pool::instance().set_threads(threads);
  std::vector<Set> all = sets(count);
  Pool::instance().run([&](Slice slice) {
    for (int i = 0; i < count; i++) {
      if (i % 1000 == 7 * slice.index) std::this_thread::sleep_for(std::chrono::microseconds(200));
      for (Tasks tasks(all[i].n, all[i].least, slice); tasks.next();)
        for (int task = tasks.now().begin; task < tasks.now().end; task++) all[i].worked[task]++;
    }
  });
  for (const Set& set : all)
    for (int task = 0; task < set.n; task++)
      if (set.worked[task] != 1) return false;
  return true;
}

// Thread 0 keeps what it took first until the others have worked all the rest.
bool others_take_over(int threads, int n) {
  Pool::instance().set_threads(threads);
  std::atomic<int> worked{0};
  bool in_time = true;
  Pool::instance().run([&](Slice slice) {
    bool slow = slice.index == 0;
    for (Tasks tasks(n, 1, slice); tasks.next(); slow = false) {
      const int some = tasks.now().end - tasks.now().begin;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (slow && worked < n - some && in_time) in_time = std::chrono::steady_clock::now() < limit;
      worked += some;
    }
  });
  return in_time && worked == n;
}

}  // namespace

int main() {
  int failed = 0;
  for (int threads = 1; threads <= 5; threads++)
    if (!every_task_once(threads, threads == 2 ? 70000 : 5000))  // more than turns are counted to
      failed++, std::printf("%d threads: a task was worked twice or never\n", threads);
  for (int threads = 2; threads <= 4; threads++)
    if (!others_take_over(threads, 100)) failed++, std::printf("%d threads: work waited for a slow thread\n", threads);
  std::printf(failed ? "%d checks of tasks failed\n" : "tasks: ok\n", failed);
  return failed != 0;
}
