// Owns: the settings of every slot, and the reading of logits at the end of a step: which id each sampling row chooses and what
// reporting rows report. Works on one block of rows at a time, on all lanes: over the rows, and where they are few over the
// vocabulary too.
//
//   steer (rows) | largest per segment (rows x slices) | weights per segment (rows x slices) | choose and report (rows)
//
// Knows neither steps nor models. Invariant: what a row gives depends on its logits, its slot's settings and its completion; not
// on the block, the rows beside it or the lanes.
#pragma once
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "sampling/choose.h"
#include "sampling/report.h"
#include "sampling/settings.h"

namespace sapwood {

// A batch row whose hidden state predicts `position` of a request.
struct LogitRow {
  int32_t row, slot, position;
  int32_t* tokens;          // the slot's ids by position
  const uint32_t* allowed;  // one bit per id, or null: all
  int32_t sampled;          // index of the chosen id in the step's output; -1: the id at `position` is known
  int32_t report;           // index of its report; -1: none
};

struct StepOutput {
  std::vector<int32_t> sampled;  // one id per sampling run, in the order of the runs
  std::vector<LogprobReport> reports;
  std::vector<int32_t> ids;
  std::vector<float> values;
};

class Sampler {
 public:
  // At most `max_rows` rows per block, for a pool of `lanes` lanes.
  Sampler(int32_t slots, int32_t vocabulary, int32_t max_rows, int lanes);

  void start(const SlotStart& start) { slots_[size_t(start.slot)] = start.settings; }
  const SamplingSettings& settings(int32_t slot) const { return slots_[size_t(slot)]; }

  // On the compute thread, before the region. Logit row i of the block is at logits + i * stride; results go to `output`.
  void prepare(const LogitRow* rows, int64_t count, const float* logits, int64_t stride, StepOutput& output);
  void run(Lane& lane);  // every lane; all rows are done when it returns

 private:
  struct Work {
    const LogitRow* row;
    const SamplingSettings* settings;
    const float* logits;
    SteeredRow steered;
    bool samples() const { return row->sampled >= 0; }
    bool reports() const { return row->report >= 0; }
    bool steers() const { return samples() && (settings->penalises() || !settings->biases.empty() || !settings->ending_ids.empty()); }
    bool by_rank(int64_t vocabulary) const { return (settings->top_k > 0 && settings->top_k < vocabulary) || settings->top_p < 1; }
    bool limited(int64_t vocabulary) const { return settings->top_k > 0 && settings->top_k < vocabulary; }
    // Whether choosing needs the sum of all weights.
    bool weighs(int64_t vocabulary) const { return samples() && !settings->greedy() && !limited(vocabulary); }
  };
  struct Table {  // per row and segment
    Array<float> largest;
    Array<uint64_t> mass;
  };
  struct Scratch {
    Chooser chooser;
    BestIds best;
  };

  template <class F>
  void for_slices(Lane& lane, F&& f);
  void steer(Work& work) const;
  void find_largest(int64_t index, Span segments, Scratch& scratch);
  void weigh(int64_t index, Span segments, Scratch& scratch);
  void finish(int64_t index, Scratch& scratch);
  int32_t choose(int64_t index, Scratch& scratch);
  void report(int64_t index, int32_t id, Scratch& scratch);
  float highest(const float* largest) const;
  const Table& steered_table(const Work& work) const { return work.steered.changed() ? steered_ : plain_; }

  Segments segments_;
  std::vector<SamplingSettings> slots_;
  std::vector<Work> work_;
  Table plain_, steered_;   // of the logits themselves; of the logits that are chosen from (its mass also at temperature)
  std::vector<std::unique_ptr<Scratch>> scratch_;
  int64_t count_ = 0;
  bool steers_ = false, weighs_ = false;
  StepOutput* output_ = nullptr;
};

}  // namespace sapwood
