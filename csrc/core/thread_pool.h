// Owns: the compute threads. One parallel region runs a function on every lane; the calling thread is lane 0.
// Knows nothing of kernels. Invariant: results never depend on the number of lanes; a waiting lane spins for at most
// kSpinMicroseconds and then sleeps in the kernel, so idle threads leave the cores to the server's processes.
//
//   caller (lane 0)  --run(f)--> f(0) ------barrier-----> f(0) --join--> returns
//   worker (lane 1)  (parked)--> f(1) ------barrier-----> f(1) --left--> spins, then parks
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

namespace sapwood {

struct Span {  // [begin, end)
  int64_t begin, end;
};

class ThreadPool;

// What a function inside a parallel region knows about where it runs.
class Lane {
 public:
  Lane(ThreadPool& pool, int index, int count) : Lane(pool, index, count, index == 0) {}
  // The same thread on its own: all of the work is its share, and no barrier waits for others.
  Lane alone() const { return {pool_, 0, 1, is_caller}; }
  // The contiguous part of [0, total) that belongs to this lane; parts differ by at most one item.
  Span share(int64_t total) const { return {total * index / count, total * (index + 1) / count}; }
  void barrier() const;

  const int index, count;
  const bool is_caller;

 private:
  Lane(ThreadPool& pool, int index, int count, bool is_caller) : index(index), count(count), is_caller(is_caller), pool_(pool) {}
  ThreadPool& pool_;
};

// Hands out [0, total) in chunks to whoever asks; reset by one lane while no other lane can ask.
class Claims {
 public:
  void reset() { next_.store(0, std::memory_order_relaxed); }
  bool take(int64_t total, int64_t chunk, Span& out) {
    const int64_t begin = next_.fetch_add(chunk, std::memory_order_relaxed);
    if (begin >= total) return false;
    out = {begin, begin + chunk < total ? begin + chunk : total};
    return true;
  }

 private:
  alignas(64) std::atomic<int64_t> next_{0};
};

class ThreadPool : public std::enable_shared_from_this<ThreadPool> {
 public:
  // `lanes` counts the caller; `pin` ties worker i to the i-th core that this process may use.
  explicit ThreadPool(int lanes, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int lanes() const { return lanes_; }
  void pin_caller() const { pin_to(0); }

  // Runs f(Lane&) on every lane and joins; callers on several threads take turns. An exception of any lane is rethrown here (the first by lane number); a function
  // that uses barrier() must not throw, or the other lanes would wait for ever.
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
  void work(int index);
  void barrier();
  void pin_to(int index) const;

  const int lanes_;
  std::vector<int> cores_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::exception_ptr> errors_;
  std::mutex region_;  // one region at a time: two callers take turns
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<bool> quit_{false};
  std::vector<std::thread> workers_;
};

inline void Lane::barrier() const {
  if (count > 1) pool_.barrier();
}

}  // namespace sapwood
