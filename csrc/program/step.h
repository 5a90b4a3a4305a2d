// Owns: the state that steps change (token table, page table) and the expansion of a step's runs into batch rows.
// Mirrors sapwood.core.plan: a step is integers only. Invariant: a step is checked completely before it is queued, so that
// applying it on the compute thread cannot fail half-way or touch memory outside the tables and the pool.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/host_pages.h"
#include "attention/kv_pool.h"
#include "attention/plan.h"
#include "sampling/masks.h"
#include "sampling/sampler.h"

namespace sapwood {

struct TableRun {  // positions [position, position + values.size()) of a slot's row become `values`
  int32_t slot, position;
  std::vector<int32_t> values;
  int32_t kind = 0;  // of locations: the kind of layers whose pages these are (see KvPool)
};

struct RowRun {  // compute positions [first, first + count) of a slot; the last one may choose the next token
  int32_t slot, first, count;
  bool samples;
};

struct Step {  // applied from top to bottom
  std::vector<SlotStart> starts;
  std::vector<TableRun> tokens, locations;
  std::vector<PageMove> saves, loads;  // whole pages to host pages, and back
  std::vector<int32_t> copies_from, copies_to;                // of kind 0
  std::vector<int32_t> window_copies_from, window_copies_to;  // of kind 1
  std::vector<RowRun> runs;
  std::shared_ptr<Masks> masks;  // null: every run may choose any id; else sampling waits until they are released
};

struct StepLimits {
  int32_t slots, max_len, vocabulary, max_rows;
  int32_t max_logit_rows;  // rows of logits that exist at a time, not a limit of the step
};

class SlotTables {
 public:
  SlotTables(const StepLimits& limits, const KvPool& pool);

  void check(const Step& step) const;  // throws Error; reads nothing that a step in flight may write
  void apply(const Step& step);        // token and page-table writes, then copies
  int32_t* tokens(int32_t slot) const { return tokens_.data() + int64_t(slot) * limits_.max_len; }
  int32_t* locations(int32_t slot, int kind) const { return locations_[size_t(kind)].data() + int64_t(slot) * limits_.max_len; }
  const StepLimits& limits() const { return limits_; }
  const KvPool& pool() const { return pool_; }

 private:
  void check_location_runs(const std::vector<TableRun>& runs) const;
  void check_copies(int kind, const std::vector<int32_t>& from, const std::vector<int32_t>& to) const;
  void check_run(const TableRun& run) const;
  void check_runs(const std::vector<RowRun>& runs) const;
  void check_sampling(const Step& step) const;
  StepLimits limits_;
  const KvPool& pool_;
  Array<int32_t> tokens_;
  std::vector<Array<int32_t>> locations_;  // by kind
};

// The batch rows of one step, in the order of its runs.
struct BatchRows {
  struct Kind {  // where the rows and their requests' contexts lie, for one kind of layers
    std::vector<int32_t> locations;
    std::vector<Segment> segments;
  };
  std::vector<int32_t> tokens, positions;
  std::vector<Kind> kinds;
  std::vector<LogitRow> logit_rows;  // rows whose logits are needed: to sample from, or to report prompt log-probabilities

  // `output` gets room for what the step will sample and report. The step must outlive the rows.
  void expand(const Step& step, const SlotTables& tables, const Sampler& sampler, StepOutput& output);

 private:
  void add_logit_rows(const RowRun& run, int32_t index, int32_t* tokens, const SamplingSettings& settings, StepOutput& output);
};

}  // namespace sapwood
