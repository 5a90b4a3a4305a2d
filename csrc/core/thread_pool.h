// Owns: the compute threads. One parallel region runs a function on every lane; the calling thread is lane 0.
// Knows nothing of kernels. Invariant: results never depend on the number of lanes; a waiting lane spins for at most
// kSpinMicroseconds and then sleeps in the kernel, so idle threads leave the cores to the server's processes.
//
//   caller (lane 0)  --run(f)--> f(0) --divide---divide--> f(0) --join--> returns
//   worker (lane 1)  (parked)--> f(1) --divide---divide--> f(1) --left--> spins, then parks
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/work.h"

namespace sapwood {

class ThreadPool;

// What a function inside a parallel region knows about where it runs.
class Lane {
 public:
  // The same thread on its own: all of the work is its share, and it waits for nobody.
  Lane alone() const { return {pool_, 0, 1, is_caller, 0}; }
  // The contiguous part of [0, total) that belongs to this lane; parts differ by at most one item.
  Span share(int64_t total) const { return share_of(index, total); }
  // Every lane calls it with the same total, below 2^31: f(Span) runs once for every part of [0, total), at most `chunk` items at a
  // time, on whichever lane takes it. Returns when all parts are done; what they wrote is seen by what follows.
  template <class F>
  void divide(int64_t total, int64_t chunk, F&& f);
  // The same item by item, for items that take about as long: f(i) for every i, at least `least` of them in a row.
  template <class F>
  void each(int64_t total, F&& f, int64_t least = 1) {
    divide(total, std::max(least, total / (8 * count)), [&](Span part) {
      for (int64_t i = part.begin; i < part.end; i++) f(i);
    });
  }

  const int index, count;
  const bool is_caller;

 private:
  friend class ThreadPool;
  Lane(ThreadPool& pool, int index, int count, bool is_caller, uint32_t phase)
      : index(index), count(count), is_caller(is_caller), pool_(pool), phase_(phase) {}
  Span share_of(int lane, int64_t total) const { return {total * lane / count, total * (lane + 1) / count}; }
  ThreadPool& pool_;
  uint32_t phase_;  // number of the last one that this lane has passed
};

class ThreadPool : public std::enable_shared_from_this<ThreadPool> {
 public:
  // `lanes` counts the caller; `pin` ties worker i to the i-th core that this process may use.
  explicit ThreadPool(int lanes, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int lanes() const { return lanes_; }
  void settle_caller() const { settle(0); }  // what every compute thread does first

  // Runs f(Lane&) on every lane and joins; callers on several threads take turns. An exception of any lane is rethrown here (the
  // first by lane number); what Lane::divide calls must not throw, or the other lanes would wait for ever.
  template <class F>
  void run(F&& f) {
    using Body = std::remove_reference_t<F>;
    start([](void* context, Lane& lane) { (*static_cast<Body*>(context))(lane); }, &f);
  }

 private:
  friend class Lane;
  using Function = void (*)(void*, Lane&);
  void start(Function function, void* context);
  void call(int index);
  void serve(int index);
  void wait_for(uint32_t phase);
  void settle(int index) const;

  const int lanes_;
  SharedWork work_;
  std::vector<int> cores_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  uint32_t first_phase_ = 0;  // of the region: numbers begin after it
  std::vector<std::exception_ptr> errors_;
  std::mutex region_;  // one region at a time: two callers take turns
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
  std::atomic<bool> quit_{false};
  std::vector<std::thread> workers_;
};

template <class F>
void Lane::divide(int64_t total, int64_t chunk, F&& f) {
  if (count == 1)
    for (int64_t begin = 0; begin < total; begin += chunk) f(Span{begin, std::min(begin + chunk, total)});
  if (count == 1 || total <= 0) return;
  SharedWork& work = pool_.work_;
  const uint32_t phase = ++phase_;
  int64_t done = 0;
  for (int i = 0; i < count && !work.over(phase); i++) {
    const int owner = (index + i) % count;
    for (Span part; work.take(phase, owner, share_of(owner, total), chunk, part);) f(part), done += part.end - part.begin;
  }
  if (done > 0) work.finish(phase, done, total);
  pool_.wait_for(phase);
}

}  // namespace sapwood
