#include "pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace slipstream {
namespace {

constexpr int kSpins = 4000;  // tens of microseconds: longer than a step of a small model, shorter than a time slice

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  int count = static_cast<int>(std::thread::hardware_concurrency());
  return count > 0 ? count : 1;
}

// A number that threads wait on: a short spin, then sleep.
class Signal {
 public:
  uint64_t now() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    value_.fetch_add(1);
    if (sleepers_.load() == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }

  void wait_past(uint64_t seen) {
    for (int i = 0; i < kSpins; i++) {
      if (now() != seen) return;
      pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    changed_.wait(lock, [&] { return value_.load() != seen; });
    sleepers_.fetch_sub(1);
  }

 private:
  std::atomic<uint64_t> value_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

constexpr int kPieces = 4;  // a thread takes this part of what is left: much at first, little at the end

// What is left of a thread's part of the tasks, in one number: whose turn it is, first task, end.
struct alignas(64) Part {
  std::atomic<uint64_t> left{0};
  uint16_t turn = 0;  // Tasks that its thread has made
};

uint64_t packed(uint16_t turn, Range range) {
  return static_cast<uint64_t>(turn) << 48 | static_cast<uint64_t>(range.begin) << 24 | static_cast<uint64_t>(range.end);
}

}  // namespace

struct Pool::State {
  std::mutex region;  // held for the length of a region
  std::vector<std::thread> workers;
  std::atomic<int> count;
  std::unique_ptr<Part[]> parts;
  std::atomic<bool> stopping{false};
  Signal started, passed;
  std::atomic<int> arrived{0};
  const std::function<void(Slice)>* work = nullptr;

  explicit State(int threads) { resize(threads); }

  void resize(int threads) {
    count.store(threads);
    parts.reset(new Part[threads]);
  }

  void barrier() {
    int all = count.load(std::memory_order_relaxed);
    if (all == 1) return;
    uint64_t seen = passed.now();
    if (arrived.fetch_add(1) + 1 == all) {
      arrived.store(0);
      passed.advance();
    } else {
      passed.wait_past(seen);
    }
  }

  void serve(int index, uint64_t seen) {
    for (;; seen++) {
      started.wait_past(seen);
      if (stopping.load()) return;
      (*work)({index, count.load()});
      barrier();
    }
  }

  void start() {
    uint64_t seen = started.now();
    for (int i = 1; i < count.load(); i++) workers.emplace_back([this, i, seen] { serve(i, seen); });
  }

  void stop() {
    stopping.store(true);
    started.advance();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
    stopping.store(false);
  }
};

Pool::Pool() : state_(new State(processors())) {
#if defined(__unix__) || defined(__APPLE__)
  // a forked child has no workers: it forgets the parent's and makes its own when it needs them
  pthread_atfork(nullptr, nullptr, [] {
    Pool& pool = instance();
    int count = pool.threads();
    pool.state_ = new State(count);
  });
#endif
}

// Never destroyed at exit: a region may still be running in a thread that the interpreter does not wait for.
Pool& Pool::instance() {
  static Pool* pool = new Pool;
  return *pool;
}

int Pool::threads() const { return state_->count.load(); }

void Pool::set_threads(int count) {
  std::lock_guard<std::mutex> lock(state_->region);
  if (count < 1) count = 1;
  if (count == state_->count.load()) return;
  state_->stop();
  state_->resize(count);
}

void Pool::run(const std::function<void(Slice)>& work) {
  State& state = *state_;
  std::lock_guard<std::mutex> lock(state.region);
  int count = state.count.load();
  if (count > 1 && state.workers.empty()) state.start();
  state.work = &work;
  if (count > 1) state.started.advance();
  work({0, count});
  state.barrier();
}

void Pool::barrier() { state_->barrier(); }

// A thread leaves its Tasks when no part has any left, so those that begin the next may find parts of an earlier turn
// (whole again), never what is left of one; and a late thread may find its own part begun, or a turn further on.
Tasks::Tasks(int n, int least, Slice slice)
    : n_(n), least_(least), slice_(slice), state_(*Pool::instance().state_) {
  Part& own = state_.parts[slice.index];
  turn_ = ++own.turn;
  uint64_t seen = own.left.load(std::memory_order_relaxed);
  while (static_cast<int16_t>(static_cast<uint16_t>(seen >> 48) - turn_) < 0 &&
         !own.left.compare_exchange_weak(seen, packed(turn_, share(n, slice)), std::memory_order_relaxed)) {
  }
}

bool Tasks::next() {
  for (int i = 0; i < slice_.count; i++)
    if (take((slice_.index + i) % slice_.count)) return true;
  return false;
}

Range Tasks::left(uint64_t seen, int whose) const {
  const int ahead = static_cast<int16_t>(static_cast<uint16_t>(seen >> 48) - turn_);
  if (ahead < 0) return share(n_, {whose, slice_.count});
  if (ahead > 0) return {0, 0};
  return {static_cast<int>(seen >> 24 & 0xffffff), static_cast<int>(seen & 0xffffff)};
}

bool Tasks::take(int whose) {
  std::atomic<uint64_t>& part = state_.parts[whose].left;
  uint64_t seen = part.load(std::memory_order_relaxed);
  for (;;) {
    const Range there = left(seen, whose);
    const int all = there.end - there.begin;
    if (!all) return false;
    const int some = slice_.count == 1 ? all : std::min(all, std::max(least_, all / kPieces));
    Range rest = there;
    if (whose == slice_.index)
      now_ = {there.begin, rest.begin += some};
    else
      now_ = {rest.end -= some, there.end};
    if (part.compare_exchange_weak(seen, packed(turn_, rest), std::memory_order_relaxed)) return true;
  }
}

}  // namespace slipstream
