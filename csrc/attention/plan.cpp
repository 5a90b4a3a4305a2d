#include "attention/plan.h"

#include <algorithm>

#include "core/error.h"

namespace sapwood {
namespace {

constexpr int kRowsToShare = 64;  // a request with more rows in the step is bound by arithmetic, not by reading pages

int first_position(const Segment& s) { return s.length - s.rows; }

// Whole chunks before the first row of the segment: every row sees all of their tokens.
int whole_chunks(const Segment& s) { return (first_position(s) + 1) / kChunkTokens; }

bool same_pages(const Segment& a, const Segment& b, int chunk) {
  for (int p = 0; p < kChunkPages; p++) {
    const int token = chunk * kChunkTokens + p * kPageTokens;
    if (a.locations[token] / kPageTokens != b.locations[token] / kPageTokens) return false;
  }
  return true;
}

}  // namespace

void AttentionPlan::add_strips(std::vector<Strip>& to, int first, int chunk) const {
  for (int end = int(rows_.size()); first < end; first += rows_per_strip_) to.push_back({first, std::min(rows_per_strip_, end - first), chunk});
}

void AttentionPlan::add_ahead(const std::vector<int>& members, int chunk) {
  const int first = int(rows_.size());
  for (int m : members) {
    for (int r = 0; r < segments_[size_t(m)].rows; r++) rows_.push_back({m, r});
    chunks_ahead_[size_t(m)] = chunk + 1;
  }
  add_strips(ahead_, first, chunk);
}

// `members` agree on every chunk before `chunk`; those that still agree share it, and so on.
void AttentionPlan::share(std::vector<int> members, int chunk) {
  std::erase_if(members, [&](int m) { return whole_chunks(segments_[size_t(m)]) <= chunk; });
  while (members.size() > 1) {
    const Segment& leader = segments_[size_t(members[0])];
    const auto rest = std::stable_partition(members.begin(), members.end(), [&](int m) { return same_pages(segments_[size_t(m)], leader, chunk); });
    const std::vector<int> together(members.begin(), rest);
    members.erase(members.begin(), rest);
    if (together.size() < 2) continue;
    add_ahead(together, chunk);
    share(together, chunk + 1);
  }
}

// With fewer pieces of work than the lanes can balance, long requests hand their whole chunks to stage A.
void AttentionPlan::split(const Options& options) {
  int64_t pieces = 0;
  for (const auto& s : segments_) pieces += (s.rows + rows_per_strip_ - 1) / rows_per_strip_ * options.kv_heads;
  if (options.lanes == 1 || pieces >= 8 * options.lanes) return;
  for (int m = 0; m < int(segments_.size()); m++) {
    const Segment& s = segments_[size_t(m)];
    if (s.rows > rows_per_strip_) continue;
    for (int chunk = chunks_ahead_[size_t(m)]; chunk < whole_chunks(s); chunk++) add_ahead({m}, chunk);
  }
}

void AttentionPlan::build(const std::vector<Segment>& segments, const Options& options) {
  segments_ = segments;
  rows_.clear(), ahead_.clear(), strips_.clear();
  chunks_ahead_.assign(segments.size(), 0);
  rows_per_strip_ = std::max(1, kVectors / options.group);
  std::vector<int> sharing;
  for (int m = 0; m < int(segments.size()); m++) {
    const Segment& s = segments[size_t(m)];
    require(s.rows > 0 && s.length >= s.rows, "a request in a step needs at least one row and no more rows than context");
    if (s.rows <= kRowsToShare) sharing.push_back(m);
  }
  if (options.window == 0) share(sharing, 0), split(options);
  first_partial_.assign(segments.size(), 0);
  partials_ = 0;
  for (int m = 0; m < int(segments.size()); m++) {
    first_partial_[size_t(m)] = partials_;
    partials_ += int64_t(segments[size_t(m)].rows) * chunks_ahead_[size_t(m)];
    const int first = int(rows_.size());
    for (int r = 0; r < segments[size_t(m)].rows; r++) rows_.push_back({m, r});
    add_strips(strips_, first, 0);
  }
  // The longest strips first: a lane that starts one last would keep the others waiting.
  std::stable_sort(strips_.begin(), strips_.end(), [&](const Strip& a, const Strip& b) {
    const auto work = [&](const Strip& s) {
      const RowRef ref = rows_[size_t(s.first)];
      return int64_t(s.count) * (segments_[size_t(ref.segment)].length - kChunkTokens * chunks_ahead_[size_t(ref.segment)]);
    };
    return work(a) > work(b);
  });
}

}  // namespace sapwood
