#include "attention/attention.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.h"
#include "kernels/kernels.h"

namespace sapwood {

struct Attention::Scratch {  // one lane's; `vectors` = rows of a strip x heads of a group
  Array<float> queries, scores, page, part_max, part_sum, part_out, max, sum, out;
  Array<const float*> part;  // where each vector's partial output lies
  Array<int> low, high;
  Scratch(const KvShape& kv, size_t vectors)
      : queries(vectors * size_t(kv.head_dim)), scores(vectors * kChunkTokens), page(size_t(attend_scratch(kv.head_dim))),
        part_max(room(vectors)), part_sum(room(vectors)), part_out(vectors * size_t(kv.padded_dim())),
        max(room(vectors)), sum(room(vectors)), out(vectors * size_t(kv.padded_dim())), part(vectors), low(vectors), high(vectors) {}
  static size_t room(size_t vectors) { return size_t(fold_room(int(vectors))); }
};

Attention::Attention(const KvShape& kv, int query_heads, int lanes) : kv_(kv), query_heads_(query_heads) {
  require(query_heads > 0 && query_heads % kv.kv_heads == 0,
          std::to_string(query_heads) + " query heads cannot be shared out over " + std::to_string(kv.kv_heads) + " kv heads");
  group_ = query_heads / kv.kv_heads;
  entry_ = kv.padded_dim() + 8;
  for (int i = 0; i < lanes; i++) scratch_.push_back(std::make_unique<Scratch>(kv, size_t(AttentionPlan::max_vectors(group_))));
}

Attention::~Attention() = default;

void Attention::prepare(const AttentionPlan& plan) {
  const size_t needed = size_t(plan.partials()) * size_t(query_heads_) * size_t(entry_);
  if (partials_.size() < needed) partials_ = Array<float>(needed + needed / 2);
}

float* Attention::partial(const Step& step, RowRef ref, int chunk, int query_head) const {
  return partials_.data() + (step.plan.partial(ref, chunk) * query_heads_ + query_head) * entry_;
}

void Attention::gather(const Step& step, const Strip& strip, int kv_head, Scratch& s) const {
  for (int i = 0; i < strip.count; i++) {
    const RowRef ref = step.plan.rows()[size_t(strip.first + i)];
    const int64_t row = step.plan.segments()[size_t(ref.segment)].first_row + ref.row;
    const float* from = step.queries + row * step.query_stride + int64_t(kv_head) * group_ * kv_.head_dim;
    float* to = s.queries.data() + int64_t(i) * group_ * kv_.head_dim;
    for (int d = 0; d < group_ * kv_.head_dim; d++) to[d] = from[d] * step.shape.scale;
  }
}

// Computes the strip's partials of one chunk into the scratch; false where no row sees any of it.
bool Attention::run_chunk(const Step& step, const Strip& strip, int kv_head, int chunk, Scratch& s) const {
  const int start = chunk * kChunkTokens;
  int first = kChunkTokens, end = 0;
  for (int i = 0; i < strip.count; i++) {
    const RowRef ref = step.plan.rows()[size_t(strip.first + i)];
    const Segment& segment = step.plan.segments()[size_t(ref.segment)];
    const int position = segment.length - segment.rows + ref.row;
    const int oldest = step.shape.window > 0 ? position - step.shape.window + 1 : 0;
    const int low = std::clamp(oldest - start, 0, kChunkTokens), high = std::clamp(position + 1 - start, 0, kChunkTokens);
    if (low < high) first = std::min(first, low), end = std::max(end, high);
    for (int h = 0; h < group_; h++) s.low[size_t(i * group_ + h)] = low, s.high[size_t(i * group_ + h)] = high;
  }
  if (first >= end) return false;
  const Segment& pages_of = step.plan.segments()[size_t(step.plan.rows()[size_t(strip.first)].segment)];
  ChunkArgs args{};
  args.type = kv_.type;
  args.first_page = first / kPageTokens, args.end_page = (end + kPageTokens - 1) / kPageTokens, args.tokens = end;
  for (int p = args.first_page; p < args.end_page; p++)
    args.pages[p] = step.pool.page(step.layer, pages_of.locations[start + p * kPageTokens] / kPageTokens, kv_head);
  args.head_dim = kv_.head_dim, args.padded_dim = kv_.padded_dim();
  args.count = strip.count * group_;
  args.queries = s.queries.data(), args.low = s.low.data(), args.high = s.high.data();
  args.soft_cap = step.shape.soft_cap;
  args.scores = s.scores.data(), args.page = s.page.data();
  args.maximum = s.part_max.data(), args.sum = s.part_sum.data(), args.output = s.part_out.data();
  kernels().attend_chunk(args);
  return true;
}

void Attention::run_ahead(const Step& step, const Strip& strip, int kv_head, Scratch& s) {
  gather(step, strip, kv_head, s);
  run_chunk(step, strip, kv_head, strip.chunk, s);
  const int padded = kv_.padded_dim();
  for (int i = 0; i < strip.count * group_; i++) {
    float* to = partial(step, step.plan.rows()[size_t(strip.first + i / group_)], strip.chunk, kv_head * group_ + i % group_);
    std::copy_n(s.part_out.data() + int64_t(i) * padded, padded, to);
    to[padded] = s.part_max[size_t(i)], to[padded + 1] = s.part_sum[size_t(i)];
  }
}

void Attention::run_strip(const Step& step, const Strip& strip, int kv_head, Scratch& s) {
  const KernelTable& table = kernels();
  const int padded = kv_.padded_dim(), vectors = strip.count * group_;
  const RowRef first = step.plan.rows()[size_t(strip.first)];
  const Segment& segment = step.plan.segments()[size_t(first.segment)];
  const int last_position = segment.length - segment.rows + first.row + strip.count - 1;
  const int ahead = step.plan.chunks_ahead(first.segment);
  gather(step, strip, kv_head, s);
  std::fill_n(s.max.data(), vectors, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum.data(), vectors, 0.f);
  for (int chunk = 0; chunk * kChunkTokens <= last_position; chunk++) {
    if (chunk >= ahead && !run_chunk(step, strip, kv_head, chunk, s)) continue;
    for (int i = 0; i < vectors; i++) {
      s.part[size_t(i)] = s.part_out.data() + int64_t(i) * padded;
      if (chunk >= ahead) continue;
      const float* from = partial(step, step.plan.rows()[size_t(strip.first + i / group_)], chunk, kv_head * group_ + i % group_);
      s.part[size_t(i)] = from, s.part_max[size_t(i)] = from[padded], s.part_sum[size_t(i)] = from[padded + 1];
    }
    table.fold_partials({vectors, padded, s.max.data(), s.sum.data(), s.out.data(), s.part_max.data(), s.part_sum.data(), s.part.data()});
  }
  for (int i = 0; i < vectors; i++) {
    const int64_t row = segment.first_row + first.row + i / group_;
    float* to = step.out + row * step.out_stride + int64_t(kv_head * group_ + i % group_) * kv_.head_dim;
    table.finish_vector(s.out.data() + int64_t(i) * padded, s.sum[size_t(i)], kv_.head_dim, to);
  }
}

void Attention::run(Lane& lane, const Step& step) {
  Scratch& s = *scratch_[size_t(lane.index)];
  const auto divide = [&](const std::vector<Strip>& strips, auto&& f) {
    lane.divide(int64_t(strips.size()) * kv_.kv_heads, 1, [&](Span part) {
      for (int64_t i = part.begin; i < part.end; i++) f(strips[size_t(i / kv_.kv_heads)], int(i % kv_.kv_heads));
    });
  };
  divide(step.plan.ahead(), [&](const Strip& strip, int kv_head) { run_ahead(step, strip, kv_head, s); });
  divide(step.plan.strips(), [&](const Strip& strip, int kv_head) { run_strip(step, strip, kv_head, s); });
}

}  // namespace sapwood
