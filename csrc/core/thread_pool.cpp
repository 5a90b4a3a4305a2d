#include "core/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include "core/error.h"
#include "core/spin.h"

namespace sapwood {
namespace {

// Returns once `word` differs from `old`: spins first (a wake-up costs tens of microseconds), then sleeps on a futex.
void wait_while(const std::atomic<uint32_t>& word, uint32_t old) {
  if (spin_until([&] { return word.load(std::memory_order_acquire) != old; })) return;
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

// Compute threads are of the normal class where the thread that made them waits for their offers (see `offer_core`).
void be_normal() {
  if (sched_getscheduler(0) != SCHED_BATCH) return;
  const sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_OTHER, &none);  // a refusal changes speed, not results
}

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; core++)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

}  // namespace

ThreadPool::ThreadPool(int lanes, bool pin) : lanes_(lanes), work_(std::max(lanes, 1)) {
  require(lanes >= 1 && lanes <= 1024, "a thread pool needs 1 to 1024 threads, not " + std::to_string(lanes));
  if (pin) cores_ = allowed_cores();
  errors_.resize(size_t(lanes));
  workers_.reserve(size_t(lanes - 1));
  for (int index = 1; index < lanes; index++) workers_.emplace_back([this, index] { serve(index); });
}

ThreadPool::~ThreadPool() {
  quit_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::settle(int index) const {
  be_normal();
  if (cores_.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores_[size_t(index) % cores_.size()], &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a refusal changes speed, not results
}

void ThreadPool::call(int index) {
  Lane lane(*this, index, lanes_, index == 0, first_phase_);
  try {
    function_(context_, lane);
  } catch (...) {
    errors_[size_t(index)] = std::current_exception();
  }
}

void ThreadPool::start(Function function, void* context) {
  const std::lock_guard turn(region_);
  function_ = function;
  context_ = context;
  first_phase_ = work_.begin_region();
  if (lanes_ > 1) {
    running_.store(uint32_t(lanes_ - 1), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  call(0);
  for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) wait_while(running_, left);
  for (auto& error : errors_)
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
}

void ThreadPool::serve(int index) {
  settle(index);
  for (uint32_t seen = 0;; seen++) {
    wait_while(epoch_, seen);
    if (quit_.load(std::memory_order_relaxed)) return;
    call(index);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

void ThreadPool::wait_for(uint32_t phase) {
  for (uint32_t newest; (newest = work_.newest()) < phase;) wait_while(work_.newest_word(), newest);
}

}  // namespace sapwood
