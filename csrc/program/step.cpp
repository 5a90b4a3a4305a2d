#include "program/step.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace sapwood {

SlotTables::SlotTables(const StepLimits& limits, const KvPool& pool)
    : limits_(limits), pool_(pool), tokens_(size_t(limits.slots) * size_t(limits.max_len)) {
  for (int kind = 0; kind < pool.kinds(); kind++) locations_.emplace_back(tokens_.size());
  require(limits.slots > 0 && limits.max_len > 0 && limits.vocabulary > 0 && limits.max_rows > 0 && limits.max_logit_rows > 0,
          "slots, max_len, vocabulary, max_rows and max_logit_rows must all be at least 1");
}

void SlotTables::check_runs(const std::vector<RowRun>& runs) const {
  int64_t rows = 0;
  std::vector<int32_t> slots;
  for (const auto& run : runs) {
    require(run.slot >= 0 && run.slot < limits_.slots, "slot " + std::to_string(run.slot) + " does not exist");
    require(run.first >= 0 && run.count > 0 && run.count <= limits_.max_len - run.first,
            "a run of " + std::to_string(run.count) + " positions from " + std::to_string(run.first) + " does not fit max_len");
    require(!run.samples || run.first + run.count < limits_.max_len, "a run that samples needs room for the sampled token");
    rows += run.count;
    slots.push_back(run.slot);
  }
  std::sort(slots.begin(), slots.end());
  require(std::adjacent_find(slots.begin(), slots.end()) == slots.end(), "a slot may appear only once in a step");
  require(rows <= limits_.max_rows, "a step of " + std::to_string(rows) + " rows exceeds the program's " + std::to_string(limits_.max_rows));
}

void SlotTables::check_sampling(const Step& step) const {
  for (const auto& start : step.starts) {
    require(start.slot >= 0 && start.slot < limits_.slots, "slot " + std::to_string(start.slot) + " does not exist");
    sapwood::check(start.settings, limits_.vocabulary);
  }
  if (step.masks == nullptr) return;
  require(step.masks->words() == (limits_.vocabulary + 31) / 32, "masks need one bit for every id of the vocabulary");
  for (int32_t run : step.masks->runs())
    require(run >= 0 && size_t(run) < step.runs.size() && step.runs[size_t(run)].samples, "masks need runs that sample");
}

void SlotTables::check_run(const TableRun& w) const {
  require(w.slot >= 0 && w.slot < limits_.slots && w.position >= 0 && w.position <= limits_.max_len &&
              int64_t(w.values.size()) <= limits_.max_len - w.position,
          "a table write of " + std::to_string(w.values.size()) + " values at position " + std::to_string(w.position) + " of slot " +
              std::to_string(w.slot) + " does not fit");
}

void SlotTables::check_location_runs(const std::vector<TableRun>& runs) const {
  for (const auto& w : runs) {
    check_run(w);
    require(w.kind >= 0 && w.kind < pool_.kinds(), "the pool has no pages of kind " + std::to_string(w.kind));
    for (size_t i = 0; i < w.values.size(); i++) {
      pool_.check_location(w.kind, w.values[i]);
      require((w.position + int64_t(i)) % kPageTokens == w.values[i] % kPageTokens,
              "location " + std::to_string(w.values[i]) + " cannot hold position " + std::to_string(w.position + int64_t(i)) +
                  ": a page holds 16 consecutive positions in order");
    }
  }
}

void SlotTables::check_copies(int kind, const std::vector<int32_t>& from, const std::vector<int32_t>& to) const {
  require(from.size() == to.size(), "copies must come in pairs");
  require(from.empty() || kind < pool_.kinds(), "the pool has no pages of kind " + std::to_string(kind));
  for (int32_t location : from) pool_.check_location(kind, location);
  for (int32_t location : to) pool_.check_location(kind, location);
}

void SlotTables::check(const Step& step) const {
  for (const auto& w : step.tokens) {
    check_run(w);
    for (int32_t id : w.values) require(id >= 0 && id < limits_.vocabulary, "token id " + std::to_string(id) + " is outside the vocabulary");
  }
  check_location_runs(step.locations);
  check_copies(0, step.copies_from, step.copies_to);
  check_copies(1, step.window_copies_from, step.window_copies_to);
  check_runs(step.runs);
  check_sampling(step);
}

void SlotTables::apply(const Step& step) {
  for (const auto& w : step.tokens) std::copy(w.values.begin(), w.values.end(), tokens(w.slot) + w.position);
  for (const auto& w : step.locations) std::copy(w.values.begin(), w.values.end(), locations(w.slot, w.kind) + w.position);
  pool_.copy_tokens(0, step.copies_from.data(), step.copies_to.data(), int64_t(step.copies_from.size()));
  pool_.copy_tokens(1, step.window_copies_from.data(), step.window_copies_to.data(), int64_t(step.window_copies_from.size()));
}

// Position p is predicted by the row of position p - 1. Prompt positions first, then the one that is sampled.
void BatchRows::add_logit_rows(const RowRun& run, int32_t index, int32_t* tokens, const SamplingSettings& settings, StepOutput& output) {
  const int32_t end = run.first + run.count, first_row = int32_t(positions.size()) - run.count;
  const auto add = [&](int32_t position, bool samples, bool reports) {
    LogitRow row{first_row + position - 1 - run.first, run.slot, position, tokens, nullptr, -1, -1};
    if (samples) row.sampled = int32_t(output.sampled.size()), output.sampled.push_back(-1);
    if (reports) {
      const int32_t asked = int32_t(settings.asked_ids.size());
      row.report = int32_t(output.reports.size());
      output.reports.push_back({index, position, samples, settings.top_n, asked, int64_t(output.ids.size())});
      output.ids.resize(output.ids.size() + size_t(1 + settings.top_n + asked));
    }
    logit_rows.push_back(row);
  };
  if (settings.prompt_start >= 0) {
    const int32_t stop = std::min(end + (run.samples ? 0 : 1), settings.num_prompt);
    for (int32_t p = std::max(run.first + 1, settings.prompt_start); p < stop; p++) add(p, false, true);
  }
  if (run.samples) add(end, true, settings.reports_output);
}

void BatchRows::expand(const Step& step, const SlotTables& tables, const Sampler& sampler, StepOutput& output) {
  tokens.clear(), positions.clear(), logit_rows.clear();
  kinds.resize(size_t(tables.pool().kinds()));
  for (Kind& k : kinds) k.locations.clear(), k.segments.clear();
  std::vector<const uint32_t*> allowed(step.runs.size(), nullptr);
  if (step.masks != nullptr)
    for (size_t i = 0; i < step.masks->runs().size(); i++) allowed[size_t(step.masks->runs()[i])] = step.masks->row(int64_t(i));
  for (size_t i = 0; i < step.runs.size(); i++) {
    const RowRun& run = step.runs[i];
    const int32_t* ids = tables.tokens(run.slot) + run.first;
    for (size_t k = 0; k < kinds.size(); k++) {
      const int32_t* row = tables.locations(run.slot, int(k));
      kinds[k].segments.push_back({row, int(tokens.size()), run.count, run.first + run.count});
      kinds[k].locations.insert(kinds[k].locations.end(), row + run.first, row + run.first + run.count);
    }
    tokens.insert(tokens.end(), ids, ids + run.count);
    for (int32_t p = 0; p < run.count; p++) positions.push_back(run.first + p);
    add_logit_rows(run, int32_t(i), tables.tokens(run.slot), sampler.settings(run.slot), output);
    if (run.samples) logit_rows.back().allowed = allowed[i];
  }
  output.values.resize(output.ids.size());
}

}  // namespace sapwood
