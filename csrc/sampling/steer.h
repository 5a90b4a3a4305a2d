// Owns: one row of logits as penalties, biases and forbidden ids leave it, without changing the row itself: few ids change, so
// they are kept as patches that are laid over the row one segment at a time.
// Invariant: the order of operations on an id is that of sapwood.kernels.reference.sampling, each in fp32.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "sampling/settings.h"

namespace sapwood {

constexpr int64_t kSegment = 1024;  // ids that are looked at together

// Where the ids of the vocabulary lie: in `count` segments, the last of which may be shorter.
struct Segments {
  int64_t vocabulary;
  int64_t count() const { return (vocabulary + kSegment - 1) / kSegment; }
  int64_t first(int64_t s) const { return s * kSegment; }
  int64_t size(int64_t s) const { return std::min(kSegment, vocabulary - s * kSegment); }
};

class SteeredRow {
 public:
  // `allowed`: one bit per id, lowest first, or null. The completion is the ids chosen so far.
  void set(const float* logits, Segments segments, const uint32_t* allowed);
  void steer(const SamplingSettings& settings, const int32_t* completion, int64_t length);

  const Segments& segments() const { return segments_; }
  bool changed() const { return allowed_ != nullptr || !patches_.empty(); }
  // The logits of segment s: in the row itself where nothing changes, else in `scratch` (kSegment numbers).
  const float* read(int64_t s, float* scratch) const;

 private:
  float steered(int32_t id, int64_t occurrences, const SamplingSettings& settings) const;

  const float* logits_ = nullptr;
  Segments segments_{0};
  const uint32_t* allowed_ = nullptr;
  std::vector<std::pair<int32_t, float>> patches_;  // by ascending id
  std::vector<int32_t> completion_;                 // sorted
};

}  // namespace sapwood
