#include "sampling/choose.h"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"

namespace sapwood {
namespace {

constexpr int kBuckets = 256;
constexpr int64_t kLook = 64;
// How far from the top, in temperatures, candidates are sought: nearly every nucleus ends at weights above e^-6; beyond the last
// distance nothing weighs anything.
constexpr float kSpans[] = {6, 14, kWeightless};
constexpr double kNoReach = std::numeric_limits<double>::infinity();

uint64_t scaled(uint64_t bits, uint64_t mass) { return uint64_t((static_cast<unsigned __int128>(bits) * mass) >> 53); }

}  // namespace

uint64_t fixed_weight(float weight) {  // adding 2^52 rounds to a whole number, to even at ties
  return std::bit_cast<uint64_t>(double(weight) * 0x1p44 + 0x1p52) & 0xfffffffffffffu;
}

int32_t first_largest(const Distribution& d) {
  float scratch[kSegment];
  for (int64_t s = 0; s < d.row.segments().count(); s++) {
    if (!(d.largest[s] == d.highest)) continue;
    const float* x = d.row.read(s, scratch);
    for (int64_t i = 0; i < d.row.segments().size(s); i++)
      if (x[i] == d.highest) return int32_t(d.row.segments().first(s) + i);
  }
  return 0;
}

int32_t Chooser::by_id(const Distribution& d, const SamplingSettings& settings, uint64_t bits, const uint64_t* masses) {
  const Segments& segments = d.row.segments();
  uint64_t total = 0;
  for (int64_t s = 0; s < segments.count(); s++) total += masses[s];
  if (total == 0) return first_largest(d);  // logits that are not numbers
  uint64_t left = scaled(bits, total);
  int64_t s = 0;
  for (; left >= masses[s]; s++) left -= masses[s];
  kernels().weights(d.row.read(s, segment_.data()), segments.size(s), d.highest, d.temperature, weights_.data());
  int64_t i = 0;
  for (; i < segments.size(s) - 1; i++) {
    const uint64_t weight = weights_[size_t(i)] >= settings.min_p ? fixed_weight(weights_[size_t(i)]) : 0;
    if (left < weight) break;
    left -= weight;
  }
  return int32_t(segments.first(s) + i);
}

void Chooser::gather(const Distribution& d, float span) {
  const Segments& segments = d.row.segments();
  const float lowest = d.highest - span * d.temperature;
  size_t count = 0;
  for (int64_t s = 0; s < segments.count(); s++) {
    if (!(d.largest[s] >= lowest)) continue;
    const int64_t size = segments.size(s);
    if (values_.size() < count + size_t(size)) values_.resize(2 * count + size_t(kSegment)), ids_.resize(values_.size());
    const float* x = d.row.read(s, segment_.data());
    for (int64_t begin = 0; begin < size; begin += kLook) {  // candidates are few: most looks find none
      const int64_t end = std::min(size, begin + kLook);
      if (!(kernels().largest(x + begin, end - begin) >= lowest)) continue;
      for (int64_t i = begin; i < end; i++) {
        values_[count] = x[i], ids_[count] = int32_t(segments.first(s) + i);
        count += x[i] >= lowest;
      }
    }
  }
  ids_.resize(count), values_.resize(count), weights_.resize(std::max(count, size_t(kSegment)));
  kernels().weights(values_.data(), int64_t(count), d.highest, d.temperature, weights_.data());
}

// Counts the candidates into buckets by their distance from the top.
void Chooser::rank(const Distribution& d, float span) {
  gather(d, span);
  const float scale = kBuckets / (span * d.temperature);
  buckets_.assign(kBuckets, {0, 0, 1.f});
  places_.resize(ids_.size());
  member_bucket_ = -1;
  for (size_t i = 0; i < ids_.size(); i++) {
    places_[i] = uint8_t(std::min((d.highest - values_[i]) * scale, float(kBuckets - 1)));
    Bucket& b = buckets_[places_[i]];
    b.count++, b.mass += fixed_weight(weights_[i]), b.lightest = std::min(b.lightest, weights_[i]);
  }
}

const std::vector<Chooser::Candidate>& Chooser::members(int bucket) {
  if (bucket == member_bucket_) return members_;
  member_bucket_ = bucket;
  members_.clear();
  for (size_t i = 0; i < places_.size(); i++)
    if (places_[i] == bucket) members_.push_back({values_[i], ids_[i], fixed_weight(weights_[i])});
  const auto before = [](const Candidate& l, const Candidate& r) { return l.x > r.x || (l.x == r.x && l.id < r.id); };
  if (!std::is_sorted(members_.begin(), members_.end(), before)) std::sort(members_.begin(), members_.end(), before);
  return members_;
}

// The longest prefix in rank order of at most `most` candidates, each with less than `reach` before it and weighing `lightest`.
Chooser::Prefix Chooser::prefix(int64_t most, double reach, float lightest) {
  Prefix p{0, false};
  const uint64_t light = fixed_weight(lightest);
  int64_t count = 0;
  for (int i = 0; i < kBuckets; i++) {
    const Bucket& b = buckets_[size_t(i)];
    if (b.count == 0) continue;
    if (count + b.count <= most && double(p.mass + b.mass) < reach && b.lightest >= lightest) {
      p.mass += b.mass, count += b.count;
      continue;
    }
    for (const Candidate& c : members(i)) {
      if (count == most || !(double(p.mass) < reach) || c.weight < light) return {p.mass, true};
      p.mass += c.weight, count++;
    }
  }
  p.ended = count == most;
  return p;
}

int32_t Chooser::at(uint64_t target) {
  int bucket = 0;
  for (; target >= buckets_[size_t(bucket)].mass; bucket++) target -= buckets_[size_t(bucket)].mass;
  const std::vector<Candidate>& in = members(bucket);
  size_t i = 0;
  for (; target >= in[i].weight; i++) target -= in[i].weight;
  return in[i].id;
}

int32_t Chooser::by_rank(const Distribution& d, const SamplingSettings& settings, uint64_t bits, uint64_t total) {
  if (!std::isfinite(d.highest)) return first_largest(d);
  const int64_t vocabulary = d.row.segments().vocabulary;
  const bool limited = settings.top_k > 0 && settings.top_k < vocabulary;
  const int64_t most = limited ? settings.top_k : vocabulary;
  for (const float span : kSpans) {
    const bool all = span == kWeightless;  // who is missing weighs nothing
    rank(d, span);
    const Prefix best = limited ? prefix(most, kNoReach, 0) : Prefix{total, true};
    if (!best.ended && !all) continue;
    const double reach = settings.top_p < 1 ? settings.top_p * double(best.mass) : kNoReach;
    const Prefix kept = prefix(most, reach, settings.min_p);
    if (kept.ended || all) return at(scaled(bits, kept.mass));
  }
  return first_largest(d);
}

}  // namespace sapwood
