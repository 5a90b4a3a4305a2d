// Owns: how one request's tokens are chosen and reported, and its random numbers.
// Mirrors sapwood.core.sampling; the meaning of every number is that of sapwood.kernels.reference.sampling.
// Invariant: settings that passed `check` hold numbers in range and ids inside the vocabulary.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace sapwood {

struct SamplingSettings {
  float temperature = 0;  // 0: greedy
  int32_t top_k = 0;      // 0: no limit
  double top_p = 1;
  float min_p = 0;
  float frequency = 0, presence = 0, repetition = 1;  // of ids at positions from num_prompt on
  uint64_t seed = 0;
  int64_t sample_index = 0;
  int32_t num_prompt = 0, min_new = 0;
  std::vector<int32_t> ending_ids;                // forbidden before min_new tokens; ascending, distinct
  std::vector<std::pair<int32_t, float>> biases;  // by ascending, distinct id

  bool reports_output = false;      // log-probabilities of sampled positions
  int32_t prompt_start = -1;        // first prompt position to report; -1: none
  int32_t top_n = 0;                // best ids per report
  std::vector<int32_t> asked_ids;   // further ids per report

  bool greedy() const { return temperature == 0; }
  bool penalises() const { return frequency != 0 || presence != 0 || repetition != 1; }
};

struct SlotStart {  // a request takes a slot
  int32_t slot;
  SamplingSettings settings;
};

void check(const SamplingSettings& settings, int32_t vocabulary);  // throws Error

// 53 random bits, a pure function of its words: u = bits * 2^-53 is uniform in [0, 1). Purpose 0 chooses tokens.
uint64_t random_bits(uint64_t seed, int64_t sample_index, int64_t position, uint64_t purpose = 0);

}  // namespace sapwood
