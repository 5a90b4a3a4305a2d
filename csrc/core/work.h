// Owns: who takes which part of a phase. A phase is one piece of work that the lanes of a region divide among themselves; phases have
// numbers, and the next begins when all parts of the last are done.
//
//   items     0 ....... 1/2 total ....... total       lane 0 takes chunks of its own range, then what is left of lane 1's,
//             lane 0's range | lane 1's range         and the other way round
//
// Every word carries the number of its phase in its upper half, so nobody has to open a phase: a word with an older number stands for
// an untouched range, one with a newer number says that the phase is over. A lane that was kept away (its core was given to another
// thread) delays only what it holds, and passes over the phases that it missed.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace sapwood {

struct Span {  // [begin, end)
  int64_t begin, end;
};

class SharedWork {
 public:
  explicit SharedWork(int lanes) : lanes_(lanes), taken_(new Word[size_t(lanes)]) {}

  // The number of the newest phase that is over.
  uint32_t newest() const { return over_.load(std::memory_order_acquire); }
  bool over(uint32_t phase) const { return newest() >= phase; }
  const std::atomic<uint32_t>& newest_word() const { return over_; }

  // The number after which the phases of a new region begin; called where no lane is in one. Numbers never wrap around: they begin
  // anew long before.
  uint32_t begin_region() {
    if (newest() < kMostPhases) return newest();
    for (int i = 0; i < lanes_; i++) taken_[size_t(i)].value.store(0, std::memory_order_relaxed);
    done_.value.store(0, std::memory_order_relaxed);
    over_.store(0, std::memory_order_release);
    return 0;
  }

  // The next `chunk` items of `owner`'s `range`; false where all of them are taken.
  bool take(uint32_t phase, int owner, const Span& range, int64_t chunk, Span& out) {
    std::atomic<uint64_t>& word = taken_[size_t(owner)].value;
    for (uint64_t old = word.load(std::memory_order_relaxed);;) {
      const int64_t begin = number(old) < phase ? range.begin : int64_t(uint32_t(old));
      if (number(old) > phase || begin >= range.end) return false;
      const int64_t end = std::min(begin + chunk, range.end);
      if (!word.compare_exchange_weak(old, pack(phase, end), std::memory_order_relaxed)) continue;
      out = {begin, end};
      return true;
    }
  }

  // `items` more of `total` are done; the last of them ends the phase.
  void finish(uint32_t phase, int64_t items, int64_t total) {
    for (uint64_t old = done_.value.load(std::memory_order_relaxed);;) {
      const int64_t sum = items + (number(old) == phase ? int64_t(uint32_t(old)) : 0);
      if (!done_.value.compare_exchange_weak(old, pack(phase, sum), std::memory_order_acq_rel, std::memory_order_relaxed)) continue;
      if (sum != total) return;
      over_.store(phase, std::memory_order_release);
      over_.notify_all();
      return;
    }
  }

 private:
  static constexpr uint32_t kMostPhases = 1u << 30;
  struct alignas(64) Word {
    std::atomic<uint64_t> value{0};
  };
  static uint32_t number(uint64_t word) { return uint32_t(word >> 32); }
  static uint64_t pack(uint32_t phase, int64_t items) { return uint64_t(phase) << 32 | uint64_t(items); }

  const int lanes_;
  std::unique_ptr<Word[]> taken_;  // per owner: the first item that nobody has taken
  Word done_;                      // items that are done
  alignas(64) std::atomic<uint32_t> over_{0};
};

}  // namespace sapwood
