#include "program/stream.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <exception>

#include "core/error.h"
#include "core/spin.h"

namespace sapwood {

ComputeStream::ComputeStream(std::shared_ptr<ThreadPool> pool) : pool_(std::move(pool)), event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  require(event_fd_ >= 0, "the system gave no eventfd; raise the limit of open files");
  thread_ = std::thread([this] { work(); });
}

ComputeStream::~ComputeStream() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    for (auto& job : jobs_)
      if (job.step.masks != nullptr) job.step.masks->open();
    if (running_ != nullptr) running_->open();
  }
  queued_.notify_all();
  thread_.join();
  close(event_fd_);
}

int64_t ComputeStream::launch(std::shared_ptr<Program> program, Step step) {
  program->check(step);
  std::lock_guard lock(mutex_);
  jobs_.push_back({std::move(program), std::move(step)});
  queued_.notify_one();
  return launched_.fetch_add(1, std::memory_order_release) + 1;
}

ComputeStream::Result ComputeStream::run(Job& job) {
  Result result;
  const auto start = std::chrono::steady_clock::now();
  try {
    result.output = job.program->run(job.step);
  } catch (const std::exception& error) {  // the border of the thread: reported to whoever waits for the ticket
    result.error = error.what();
  }
  result.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void ComputeStream::work() {
  pool_->settle_caller();
  for (;;) {
    // The next step often follows at once. Only this thread spins: a waiting caller would take a core from the lanes.
    spin_until([&] { return launched_.load(std::memory_order_acquire) > completed_.load(std::memory_order_relaxed); });
    Job job;
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [&] { return quit_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      running_ = job.step.masks;
    }
    Result result = run(job);
    {
      std::lock_guard lock(mutex_);
      running_ = nullptr;
      results_.push_back(std::move(result));
      taken_.push_back(false);
      completed_.fetch_add(1, std::memory_order_release);
    }
    finished_.notify_all();
    const uint64_t one = 1;
    if (write(event_fd_, &one, sizeof one) != sizeof one) continue;  // full counter: it is readable already
  }
}

void ComputeStream::drain() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return completed_.load(std::memory_order_relaxed) == launched_; });
}

ComputeStream::Result ComputeStream::wait(int64_t ticket) {
  std::unique_lock lock(mutex_);
  require(ticket >= 1 && ticket <= launched_, "ticket " + std::to_string(ticket) + " was never launched");
  require(ticket >= first_result_, "the result of ticket " + std::to_string(ticket) + " was already taken");
  finished_.wait(lock, [&] { return completed_.load(std::memory_order_relaxed) >= ticket; });
  const size_t index = size_t(ticket - first_result_);
  require(!taken_[index], "the result of ticket " + std::to_string(ticket) + " was already taken");
  taken_[index] = true;
  Result result = std::move(results_[index]);
  while (!taken_.empty() && taken_.front()) taken_.erase(taken_.begin()), results_.pop_front(), first_result_++;
  return result;
}

}  // namespace sapwood
