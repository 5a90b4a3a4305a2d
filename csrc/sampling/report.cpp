#include "sampling/report.h"

#include <cmath>
#include <limits>

#include "sampling/choose.h"

namespace sapwood {

LogNormaliser::LogNormaliser(float highest, uint64_t mass) : highest_(highest), log_sum_(std::log(double(mass) * 0x1p-44)) {}

float LogNormaliser::operator()(float x) const { return float((double(x) - highest_) - log_sum_); }

// A heap of the best so far with the worst on top. Ids come in ascending order, so an equal value that comes later is worse.
const std::vector<int32_t>& BestIds::find(const float* logits, Segments segments, const float* largest, int32_t n) {
  const auto value = [&](int32_t id) { return std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id]; };
  const auto better = [&](int32_t a, int32_t b) { return value(a) > value(b) || (value(a) == value(b) && a < b); };
  ids_.clear();
  for (int64_t s = 0; n > 0 && s < segments.count(); s++) {
    int32_t id = int32_t(segments.first(s));
    const int32_t end = id + int32_t(segments.size(s));
    for (; id < end && int32_t(ids_.size()) < n; id++) {
      ids_.push_back(id);
      std::push_heap(ids_.begin(), ids_.end(), better);
    }
    if (id == end || !(largest[s] > value(ids_.front()))) continue;
    for (float worst = value(ids_.front()); id < end; id++) {
      if (!(logits[id] > worst)) continue;
      std::pop_heap(ids_.begin(), ids_.end(), better);
      ids_.back() = id;
      std::push_heap(ids_.begin(), ids_.end(), better);
      worst = value(ids_.front());
    }
  }
  std::sort_heap(ids_.begin(), ids_.end(), better);
  return ids_;
}

}  // namespace sapwood
