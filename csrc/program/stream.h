// Owns: the compute stream: one native thread with a queue of steps. It never touches Python; completion is an atomic count
// plus an eventfd that an event loop can watch. Invariant: steps run one at a time in the order of their launches.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "program/program.h"

namespace sapwood {

class ComputeStream {
 public:
  struct Result {
    StepOutput output;
    std::string error;        // empty: the step succeeded
    int64_t nanoseconds = 0;  // of computing, without waiting in the queue
  };

  explicit ComputeStream(std::shared_ptr<ThreadPool> pool);
  ~ComputeStream();  // finishes what was launched; opens masks that nobody has released
  ComputeStream(const ComputeStream&) = delete;
  ComputeStream& operator=(const ComputeStream&) = delete;

  // Checks the step (throws Error, launching nothing) and queues it. Returns its ticket: 1, 2, 3, ...
  int64_t launch(std::shared_ptr<Program> program, Step step);
  int64_t completed() const { return completed_.load(std::memory_order_acquire); }
  // Waits until the ticket has completed and hands out its result, once.
  Result wait(int64_t ticket);
  void drain();  // waits until everything launched so far has completed; results stay to be waited for
  int event_fd() const { return event_fd_; }  // becomes readable with each completion; the reader drains it

 private:
  struct Job {
    std::shared_ptr<Program> program;
    Step step;
  };
  void work();
  Result run(Job& job);

  std::shared_ptr<ThreadPool> pool_;
  int event_fd_;
  std::mutex mutex_;
  std::condition_variable queued_, finished_;
  std::deque<Job> jobs_;
  std::shared_ptr<Masks> running_;  // of the job that runs
  std::deque<Result> results_;  // of tickets from first_result_ on
  std::vector<bool> taken_;
  std::atomic<int64_t> launched_{0}, completed_{0};
  int64_t first_result_ = 1;
  bool quit_ = false;
  std::thread thread_;
};

}  // namespace sapwood
