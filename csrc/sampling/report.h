// Owns: log-probabilities of one row of unmodified logits: x - highest - ln(sum of e^(x - highest)), the sum in the exact weights
// of sampling/choose.h. Invariant: one formula for the chosen, the best and the asked ids, so equal ids have equal bits.
#pragma once
#include <cstdint>
#include <vector>

#include "sampling/steer.h"

namespace sapwood {

// One reported position: ids and values [first, first + 1 + top_n + asked) of the step's output: the id that is there, the best
// ids in descending order (ties by ascending id), the asked ids.
struct LogprobReport {
  int32_t run, position;
  bool sampled;  // chosen in this step; false: a prompt position
  int32_t top_n, asked;
  int64_t first;
};

class LogNormaliser {
 public:
  LogNormaliser(float highest, uint64_t mass);
  float operator()(float x) const;

 private:
  double highest_, log_sum_;
};

// The `n` best ids of a row, descending, ties by ascending id; NaN counts as the least. `largest`: by segment.
class BestIds {
 public:
  const std::vector<int32_t>& find(const float* logits, Segments segments, const float* largest, int32_t n);

 private:
  std::vector<int32_t> ids_;
};

}  // namespace sapwood
