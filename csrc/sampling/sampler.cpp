#include "sampling/sampler.h"

#include <limits>

#include "kernels/kernels.h"

namespace sapwood {
namespace {

constexpr int kRowsPerLane = 4, kSlicesPerLane = 4;  // with fewer rows the lanes share vocabularies

}  // namespace

Sampler::Sampler(int32_t slots, int32_t vocabulary, int32_t max_rows, int lanes)
    : segments_{vocabulary}, slots_(size_t(slots)), work_(size_t(max_rows)) {
  const size_t cells = size_t(max_rows) * size_t(segments_.count());
  for (Table* t : {&plain_, &steered_}) t->largest = Array<float>(cells), t->mass = Array<uint64_t>(cells);
  for (int i = 0; i < lanes; i++) scratch_.push_back(std::make_unique<Scratch>());
}

void Sampler::prepare(const LogitRow* rows, int64_t count, const float* logits, int64_t stride, StepOutput& output) {
  count_ = count, output_ = &output;
  steers_ = weighs_ = false;
  for (int64_t i = 0; i < count; i++) {
    Work& work = work_[size_t(i)];
    work.row = rows + i, work.settings = &slots_[size_t(rows[i].slot)], work.logits = logits + i * stride;
    work.steered.set(work.logits, segments_, work.samples() ? rows[i].allowed : nullptr);
    steers_ |= work.steers();
    weighs_ |= work.reports() || work.weighs(segments_.vocabulary);
  }
}

// Calls f(row, segments) for parts that make up all rows' segments, on whichever lane takes them.
template <class F>
void Sampler::for_slices(Lane& lane, F&& f) {
  const int64_t slices = count_ < kRowsPerLane * lane.count ? kSlicesPerLane * lane.count : 1, segments = segments_.count();
  lane.each(count_ * slices, [&](int64_t i) {
    const int64_t slice = i % slices;
    f(i / slices, Span{segments * slice / slices, segments * (slice + 1) / slices});
  });
}

void Sampler::steer(Work& work) const {
  if (!work.steers()) return;
  const int32_t completed = std::max(0, work.row->position - work.settings->num_prompt);
  work.steered.steer(*work.settings, work.row->tokens + work.row->position - completed, completed);
}

void Sampler::find_largest(int64_t index, Span part, Scratch& scratch) {
  const Work& work = work_[size_t(index)];
  const int64_t at = index * segments_.count();
  for (int64_t s = part.begin; s < part.end; s++) {
    const int64_t size = segments_.size(s);
    plain_.largest[size_t(at + s)] = kernels().largest(work.logits + segments_.first(s), size);
    if (!work.steered.changed()) continue;
    steered_.largest[size_t(at + s)] = kernels().largest(work.steered.read(s, scratch.chooser.scratch()), size);
  }
}

float Sampler::highest(const float* largest) const {
  float top = -std::numeric_limits<float>::infinity();
  for (int64_t s = 0; s < segments_.count(); s++) top = std::max(top, largest[s]);
  return top;
}

void Sampler::weigh(int64_t index, Span part, Scratch& scratch) {
  const Work& work = work_[size_t(index)];
  const int64_t at = index * segments_.count();
  const auto mass = [&](const Table& t, float temperature, float lightest, auto&& read, const Table& to) {
    const float top = highest(t.largest.data() + at);
    for (int64_t s = part.begin; s < part.end; s++) {
      const bool light = (t.largest[size_t(at + s)] - top) / temperature < -kWeightless;
      to.mass[size_t(at + s)] = light ? 0 : kernels().mass(read(s), segments_.size(s), top, temperature, lightest);
    }
  };
  if (work.reports()) mass(plain_, 1.f, 0.f, [&](int64_t s) { return work.logits + segments_.first(s); }, plain_);
  if (!work.weighs(segments_.vocabulary)) return;
  const float lightest = work.by_rank(segments_.vocabulary) ? 0.f : work.settings->min_p;  // ranks apply min_p themselves
  mass(steered_table(work), work.settings->temperature, lightest, [&](int64_t s) { return work.steered.read(s, scratch.chooser.scratch()); }, steered_);
}

int32_t Sampler::choose(int64_t index, Scratch& scratch) {
  const Work& work = work_[size_t(index)];
  const SamplingSettings& settings = *work.settings;
  const int64_t at = index * segments_.count();
  const float* largest = steered_table(work).largest.data() + at;
  const Distribution d{work.steered, highest(largest), settings.temperature, largest};
  if (settings.greedy()) return first_largest(d);
  const uint64_t bits = random_bits(settings.seed, settings.sample_index, work.row->position);
  const uint64_t* masses = steered_.mass.data() + at;
  if (!work.by_rank(segments_.vocabulary)) return scratch.chooser.by_id(d, settings, bits, masses);
  uint64_t total = 0;
  if (!work.limited(segments_.vocabulary))
    for (int64_t s = 0; s < segments_.count(); s++) total += masses[s];
  return scratch.chooser.by_rank(d, settings, bits, total);
}

void Sampler::report(int64_t index, int32_t id, Scratch& scratch) {
  const Work& work = work_[size_t(index)];
  const LogprobReport& report = output_->reports[size_t(work.row->report)];
  const float* largest = plain_.largest.data() + index * segments_.count();
  uint64_t mass = 0;
  for (int64_t s = 0; s < segments_.count(); s++) mass += plain_.mass[size_t(index * segments_.count() + s)];
  const LogNormaliser normalise(highest(largest), mass);
  size_t next = size_t(report.first);
  const auto put = [&](int32_t which) { output_->ids[next] = which, output_->values[next++] = normalise(work.logits[which]); };
  put(id);
  for (int32_t best : scratch.best.find(work.logits, segments_, largest, report.top_n)) put(best);
  for (int32_t asked : work.settings->asked_ids) put(asked);
}

void Sampler::finish(int64_t index, Scratch& scratch) {
  const LogitRow& row = *work_[size_t(index)].row;
  int32_t id = row.tokens[row.position];
  if (row.sampled >= 0) {
    id = choose(index, scratch);
    row.tokens[row.position] = output_->sampled[size_t(row.sampled)] = id;
  }
  if (row.report >= 0) report(index, id, scratch);
}

void Sampler::run(Lane& lane) {
  Scratch& scratch = *scratch_[size_t(lane.index)];
  if (steers_) lane.each(count_, [&](int64_t row) { steer(work_[size_t(row)]); });
  for_slices(lane, [&](int64_t row, Span segments) { find_largest(row, segments, scratch); });
  if (weighs_) for_slices(lane, [&](int64_t row, Span segments) { weigh(row, segments, scratch); });
  lane.each(count_, [&](int64_t row) { finish(row, scratch); });
}

}  // namespace sapwood
