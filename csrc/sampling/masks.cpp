#include "sampling/masks.h"

#include <algorithm>

#include "core/error.h"

namespace sapwood {

Masks::Masks(std::vector<int32_t> runs, int64_t words) : runs_(std::move(runs)), words_(words) {
  require(words_ > 0, "masks need at least one word for each run");
  bits_.assign(runs_.size() * size_t(words_), ~0u);
}

void Masks::release(const uint32_t* bits) {
  std::lock_guard lock(writing_);
  require(!released_.load(std::memory_order_relaxed), "the masks of this step were released already");
  std::copy(bits, bits + bits_.size(), bits_.begin());
  released_.store(true, std::memory_order_release);
  released_.notify_all();
}

void Masks::open() {
  std::lock_guard lock(writing_);
  released_.store(true, std::memory_order_release);
  released_.notify_all();
}

void Masks::wait() const { released_.wait(false, std::memory_order_acquire); }

}  // namespace sapwood
