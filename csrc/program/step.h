// Owns: the state that steps change (token table, page table) and the expansion of a step's runs into batch rows.
// Mirrors sapwood.core.plan: a step is integers only. Invariant: a step is checked completely before it is queued, so that
// applying it on the compute thread cannot fail half-way or touch memory outside the tables and the pool.
#pragma once
#include <cstdint>
#include <vector>

#include "attention/kv_pool.h"
#include "attention/plan.h"

namespace sapwood {

struct TableRun {  // positions [position, position + values.size()) of a slot's row become `values`
  int32_t slot, position;
  std::vector<int32_t> values;
};

struct RowRun {  // compute positions [first, first + count) of a slot; the last one may choose the next token
  int32_t slot, first, count;
  bool samples;
};

struct Step {
  std::vector<TableRun> tokens, locations;
  std::vector<int32_t> copies_from, copies_to;
  std::vector<RowRun> runs;
};

struct StepLimits {
  int32_t slots, max_len, vocabulary, max_rows, max_logit_rows;
};

class SlotTables {
 public:
  SlotTables(const StepLimits& limits, const KvPool& pool);

  void check(const Step& step) const;  // throws Error; reads nothing that a step in flight may write
  void apply(const Step& step);        // token and page-table writes, then copies
  int32_t* tokens(int32_t slot) const { return tokens_.data() + int64_t(slot) * limits_.max_len; }
  int32_t* locations(int32_t slot) const { return locations_.data() + int64_t(slot) * limits_.max_len; }
  const StepLimits& limits() const { return limits_; }
  const KvPool& pool() const { return pool_; }

 private:
  void check_runs(const std::vector<RowRun>& runs) const;
  StepLimits limits_;
  const KvPool& pool_;
  Array<int32_t> tokens_, locations_;
};

// The batch rows of one step, in the order of its runs.
struct BatchRows {
  std::vector<int32_t> tokens, positions, locations;
  std::vector<Segment> segments;
  std::vector<int32_t> logit_rows;  // rows whose logits are needed, one per sampling run
  std::vector<int32_t*> next_token; // where the sampled id of each logit row goes

  void expand(const Step& step, const SlotTables& tables);
};

}  // namespace sapwood
