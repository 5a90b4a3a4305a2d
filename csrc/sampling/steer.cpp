#include "sampling/steer.h"

#include <limits>

namespace sapwood {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

void SteeredRow::set(const float* logits, Segments segments, const uint32_t* allowed) {
  logits_ = logits, segments_ = segments, allowed_ = allowed;
  patches_.clear();
}

float SteeredRow::steered(int32_t id, int64_t occurrences, const SamplingSettings& settings) const {
  const float x = logits_[id];
  if (occurrences == 0) return x;
  const float less = x - settings.frequency * float(occurrences) - settings.presence;
  return less > 0 ? less / settings.repetition : less * settings.repetition;
}

// Merges three ascending lists: ids of the completion (with repeats), biased ids, forbidden ids.
void SteeredRow::steer(const SamplingSettings& settings, const int32_t* completion, int64_t length) {
  completion_.clear();
  if (settings.penalises()) completion_.assign(completion, completion + length);
  std::sort(completion_.begin(), completion_.end());
  const size_t forbidden = length < settings.min_new ? settings.ending_ids.size() : 0;
  for (size_t c = 0, b = 0, f = 0;;) {
    int32_t id = std::numeric_limits<int32_t>::max();
    if (c < completion_.size()) id = std::min(id, completion_[c]);
    if (b < settings.biases.size()) id = std::min(id, settings.biases[b].first);
    if (f < forbidden) id = std::min(id, settings.ending_ids[f]);
    if (id == std::numeric_limits<int32_t>::max()) return;
    int64_t occurrences = 0;
    for (; c < completion_.size() && completion_[c] == id; c++) occurrences++;
    float value = steered(id, occurrences, settings);
    if (b < settings.biases.size() && settings.biases[b].first == id) value += settings.biases[b++].second;
    if (f < forbidden && settings.ending_ids[f] == id) value = kNever, f++;
    patches_.push_back({id, value});
  }
}

const float* SteeredRow::read(int64_t s, float* scratch) const {
  const int64_t first = segments_.first(s), end = first + segments_.size(s);
  const auto by_id = [](const auto& patch, int64_t id) { return patch.first < id; };
  auto patch = std::lower_bound(patches_.begin(), patches_.end(), first, by_id);
  const bool patched = patch != patches_.end() && patch->first < end;
  if (!patched && allowed_ == nullptr) return logits_ + first;
  std::copy(logits_ + first, logits_ + end, scratch);
  for (; patch != patches_.end() && patch->first < end; ++patch) scratch[patch->first - first] = patch->second;
  if (allowed_ != nullptr)
    for (int64_t id = first; id < end; id++)
      if ((allowed_[id / 32] >> (id % 32) & 1u) == 0) scratch[id - first] = kNever;
  return scratch;
}

}  // namespace sapwood
