// Owns: what the constrained runs of a step may choose from, which is known only after the step was launched. The forward pass
// goes on meanwhile; only sampling waits. Invariant: nobody reads the bits before they are released, nobody writes them afterwards.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace sapwood {

// Shared with Python objects; `enable_shared_from_this` lets a step drop its share without the interpreter lock.
class Masks : public std::enable_shared_from_this<Masks> {
 public:
  // `runs`: the indices of the constrained runs of a step; each gets `words` words of one bit per id, lowest first, all set.
  Masks(std::vector<int32_t> runs, int64_t words);
  Masks(const Masks&) = delete;
  Masks& operator=(const Masks&) = delete;

  const std::vector<int32_t>& runs() const { return runs_; }
  int64_t words() const { return words_; }
  const uint32_t* row(int64_t index) const { return bits_.data() + index * words_; }

  // `bits`: words() words for each run. Throws Error when released before; then nothing changes.
  void release(const uint32_t* bits);
  void wait() const;  // until released, by any number of threads
  void open();        // releases them as they are, unless that has happened: for a stream that ends

 private:
  std::vector<int32_t> runs_;
  int64_t words_;
  std::vector<uint32_t> bits_;
  std::mutex writing_;
  std::atomic<bool> released_{false};
};

}  // namespace sapwood
