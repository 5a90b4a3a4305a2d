// Owns: the choice of one id from one row of steered logits.
//
// An id's weight is round(e^((x - highest) / temperature) * 2^44), an integer: sums are exact, so they do not depend on the order
// or the lanes in which they were taken, and a threshold falls on the same id wherever it is searched from.
//
//   by id     sums per segment  -> the segment that holds the target -> walk it               (no top-k, no top-p)
//   by rank   candidates near the top -> 256 buckets by distance from it -> walk buckets, looking only into those
//             that a border falls into; where the walk runs off the candidates, once more with all ids that weigh anything
#pragma once
#include <cstdint>
#include <vector>

#include "sampling/steer.h"

namespace sapwood {

constexpr int kWeightBits = 44;        // 2^18 ids of the largest weight still fit 64 bits
constexpr float kWeightless = 32;      // beyond this distance from the top (in temperatures) a weight rounds to 0

struct Distribution {
  const SteeredRow& row;
  float highest, temperature;
  const float* largest;                // [segment]: the largest logit in it
};

uint64_t fixed_weight(float weight);   // of e^... in [0, 1]
int32_t first_largest(const Distribution& d);  // the lowest id of the largest logit; 0 where all are NaN

// Per lane: memory that choices reuse.
class Chooser {
 public:
  Chooser() : segment_(size_t(kSegment)), weights_(size_t(kSegment)) {}

  // masses[segment]: sum of the weights e^... >= min_p in it.
  int32_t by_id(const Distribution& d, const SamplingSettings& settings, uint64_t bits, const uint64_t* masses);
  // `total`: the sum of all weights; needed without top_k only.
  int32_t by_rank(const Distribution& d, const SamplingSettings& settings, uint64_t bits, uint64_t total);
  float* scratch() { return segment_.data(); }

 private:
  struct Candidate {
    float x;
    int32_t id;
    uint64_t weight;
  };
  struct Bucket {
    int64_t count;
    uint64_t mass;
    float lightest;
  };
  struct Prefix {
    uint64_t mass;
    bool ended;  // by one of its limits, not by the end of the candidates
  };
  void gather(const Distribution& d, float span);
  void rank(const Distribution& d, float span);
  const std::vector<Candidate>& members(int bucket);  // by descending x, ties by ascending id
  Prefix prefix(int64_t most, double reach, float lightest);
  int32_t at(uint64_t target);

  std::vector<float> segment_, weights_, values_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> places_;
  std::vector<Candidate> members_;  // of the bucket that was asked for last
  std::vector<Bucket> buckets_;
  int member_bucket_ = -1;
};

}  // namespace sapwood
