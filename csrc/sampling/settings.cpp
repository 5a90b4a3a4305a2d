#include "sampling/settings.h"

#include <cmath>
#include <string>

#include "core/error.h"

namespace sapwood {
namespace {

uint64_t mix(uint64_t z) {  // splitmix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

void check(const SamplingSettings& s, int32_t vocabulary) {
  const auto check_id = [&](int32_t id) {
    require(id >= 0 && id < vocabulary, "token id " + std::to_string(id) + " of the sampling settings is outside the vocabulary");
  };
  require(s.temperature == 0 || (s.temperature >= 1e-6f && s.temperature <= 1e30f), "temperature must be 0 or between 1e-6 and 1e30");
  require(s.top_k >= 0 && s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1, "top_k, top_p or min_p is out of range");
  require(std::isfinite(s.frequency) && std::isfinite(s.presence) && std::isfinite(s.repetition) && s.repetition > 0, "a penalty is out of range");
  require(s.num_prompt >= 0 && s.min_new >= 0 && s.prompt_start >= -1, "num_prompt, min_new and prompt_start count tokens");
  require(s.top_n >= 0 && s.top_n <= vocabulary, "top_n must be between 0 and the vocabulary");
  for (size_t i = 0; i < s.ending_ids.size(); i++) {
    check_id(s.ending_ids[i]);
    require(i == 0 || s.ending_ids[i - 1] < s.ending_ids[i], "ending ids must ascend");
  }
  for (size_t i = 0; i < s.biases.size(); i++) {
    check_id(s.biases[i].first);
    require(std::isfinite(s.biases[i].second), "a logit bias must be finite");
    require(i == 0 || s.biases[i - 1].first < s.biases[i].first, "ids of logit biases must ascend");
  }
  for (int32_t id : s.asked_ids) check_id(id);
}

uint64_t random_bits(uint64_t seed, int64_t sample_index, int64_t position, uint64_t purpose) {
  uint64_t h = 0;
  for (uint64_t word : {seed, uint64_t(sample_index), uint64_t(position), purpose}) h = mix(h + 0x9E3779B97F4A7C15u + word);
  return h >> 11;
}

}  // namespace sapwood
