#include "program/step.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace sapwood {

SlotTables::SlotTables(const StepLimits& limits, const KvPool& pool)
    : limits_(limits), pool_(pool), tokens_(size_t(limits.slots) * size_t(limits.max_len)), locations_(tokens_.size()) {
  require(limits.slots > 0 && limits.max_len > 0 && limits.vocabulary > 0 && limits.max_rows > 0 && limits.max_logit_rows > 0,
          "slots, max_len, vocabulary, max_rows and max_logit_rows must all be at least 1");
}

void SlotTables::check_runs(const std::vector<RowRun>& runs) const {
  int64_t rows = 0, logit_rows = 0;
  std::vector<int32_t> slots;
  for (const auto& run : runs) {
    require(run.slot >= 0 && run.slot < limits_.slots, "slot " + std::to_string(run.slot) + " does not exist");
    require(run.first >= 0 && run.count > 0 && run.count <= limits_.max_len - run.first,
            "a run of " + std::to_string(run.count) + " positions from " + std::to_string(run.first) + " does not fit max_len");
    require(!run.samples || run.first + run.count < limits_.max_len, "a run that samples needs room for the sampled token");
    rows += run.count, logit_rows += run.samples;
    slots.push_back(run.slot);
  }
  std::sort(slots.begin(), slots.end());
  require(std::adjacent_find(slots.begin(), slots.end()) == slots.end(), "a slot may appear only once in a step");
  require(rows <= limits_.max_rows && logit_rows <= limits_.max_logit_rows,
          "a step of " + std::to_string(rows) + " rows and " + std::to_string(logit_rows) + " sampling runs exceeds the program's limits");
}

void SlotTables::check(const Step& step) const {
  const auto check_run = [&](const TableRun& w) {
    require(w.slot >= 0 && w.slot < limits_.slots && w.position >= 0 && w.position <= limits_.max_len &&
                int64_t(w.values.size()) <= limits_.max_len - w.position,
            "a table write of " + std::to_string(w.values.size()) + " values at position " + std::to_string(w.position) + " of slot " +
                std::to_string(w.slot) + " does not fit");
  };
  for (const auto& w : step.tokens) {
    check_run(w);
    for (int32_t id : w.values) require(id >= 0 && id < limits_.vocabulary, "token id " + std::to_string(id) + " is outside the vocabulary");
  }
  for (const auto& w : step.locations) {
    check_run(w);
    for (size_t i = 0; i < w.values.size(); i++) {
      pool_.check_location(w.values[i]);
      require((w.position + int64_t(i)) % kPageTokens == w.values[i] % kPageTokens,
              "location " + std::to_string(w.values[i]) + " cannot hold position " + std::to_string(w.position + int64_t(i)) +
                  ": a page holds 16 consecutive positions in order");
    }
  }
  require(step.copies_from.size() == step.copies_to.size(), "copies must come in pairs");
  for (int32_t location : step.copies_from) pool_.check_location(location);
  for (int32_t location : step.copies_to) pool_.check_location(location);
  check_runs(step.runs);
}

void SlotTables::apply(const Step& step) {
  for (const auto& w : step.tokens) std::copy(w.values.begin(), w.values.end(), tokens(w.slot) + w.position);
  for (const auto& w : step.locations) std::copy(w.values.begin(), w.values.end(), locations(w.slot) + w.position);
  pool_.copy_tokens(step.copies_from.data(), step.copies_to.data(), int64_t(step.copies_from.size()));
}

void BatchRows::expand(const Step& step, const SlotTables& tables) {
  tokens.clear(), positions.clear(), locations.clear(), segments.clear(), logit_rows.clear(), next_token.clear();
  for (const auto& run : step.runs) {
    const int32_t *ids = tables.tokens(run.slot) + run.first, *at = tables.locations(run.slot) + run.first;
    segments.push_back({tables.locations(run.slot), int(tokens.size()), run.count, run.first + run.count});
    tokens.insert(tokens.end(), ids, ids + run.count);
    locations.insert(locations.end(), at, at + run.count);
    for (int32_t i = 0; i < run.count; i++) positions.push_back(run.first + i);
    if (!run.samples) continue;
    logit_rows.push_back(int32_t(tokens.size()) - 1);
    next_token.push_back(tables.tokens(run.slot) + run.first + run.count);
  }
}

}  // namespace sapwood
