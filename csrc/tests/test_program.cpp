// Programs and the compute stream on a tiny random model: the law of batches over whole steps, order, and refused steps.
#include <poll.h>

#include <array>
#include <cmath>
#include <memory>

#include "core/error.h"
#include "core/half.h"
#include "program/stream.h"
#include "tests/check.h"

using namespace sapwood;

namespace {

constexpr int kHidden = 64, kInner = 96, kVocabulary = 61, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kLayers = 2, kMaxLen = 320;

std::shared_ptr<Weight> random_weight(const char* name, int64_t rows, int64_t k, uint64_t seed) {
  test::Random random(seed);
  const Format format = format_named(name);
  std::vector<std::byte> raw(size_t(raw_bytes(format, rows, k)));
  for (auto& b : raw) b = std::byte(random.bits());
  for (size_t at = 0; at < raw.size(); at += size_t(info(format).block_bytes)) {
    const uint16_t scale = float_to_half(format == Format::kQ8_0 ? 0.002f : 0.02f), min = float_to_half(-0.15f);
    std::memcpy(&raw[at], &scale, 2);
    if (format == Format::kQ4_1) std::memcpy(&raw[at + 2], &min, 2);
  }
  ThreadPool pool(1);
  return Weight::pack(format, raw.data(), int64_t(raw.size()), rows, k, pool);
}

struct Recorded {
  std::shared_ptr<Program> program;
  std::shared_ptr<KvPool> kv;
  int logits;
};

// Layer 1 sees a window, and has `window_pages` pages of its own if there are any. Keys are balanced if asked for.
Recorded record(std::shared_ptr<ThreadPool> pool, int window = 0, int logit_rows = 4, int window_pages = 0, bool balanced = false, int piece_rows = 64) {
  std::vector<float> balance(balanced ? kKvHeads * kHeadDim : 0);
  for (size_t i = 0; i < balance.size(); i++) balance[i] = std::ldexp(1.f, int(i * 5 % 7) - 3);
  const std::vector<bool> window_layers = window_pages > 0 ? std::vector<bool>{false, true} : std::vector<bool>{};
  auto kv = std::make_shared<KvPool>(KvShape{kLayers, kKvHeads, kHeadDim, KvType::kF16}, 64, window_layers, window_pages);
  auto p = std::make_shared<Program>(pool, kv, StepLimits{4, kMaxLen, kVocabulary, 700, logit_rows});
  const auto ones = std::vector<float>(kHidden, 1.f);
  auto cosine = std::make_shared<std::vector<float>>(), sine = std::make_shared<std::vector<float>>();
  for (int t = 0; t < kMaxLen; t++)
    for (int i = 0; i < kHeadDim / 2; i++) {
      cosine->push_back(std::cos(float(t) * std::pow(100.f, -float(i) / 8)));
      sine->push_back(std::sin(float(t) * std::pow(100.f, -float(i) / 8)));
    }
  const int width = (kHeads + 2 * kKvHeads) * kHeadDim;
  const int x = p->add_buffer(kHidden, Domain::kTokens), qkv = p->add_buffer(width, Domain::kTokens), mixed = p->add_buffer(kHeads * kHeadDim, Domain::kTokens);
  const int delta = p->add_buffer(kHidden, Domain::kTokens), gu = p->add_buffer(2 * kInner, Domain::kTokens), logits = p->add_buffer(kVocabulary, Domain::kLogits);
  const int a = p->add_activations(kHidden, Domain::kTokens), am = p->add_activations(kHeads * kHeadDim, Domain::kTokens);
  const int ai = p->add_activations(kInner, Domain::kTokens), al = p->add_activations(kHidden, Domain::kLogits);
  const auto table = random_weight("q8_0", kVocabulary, kHidden, 1);
  p->embed(table, 3.f, x);
  for (int layer = 0; layer < kLayers; layer++) {
    const uint64_t s = uint64_t(10 * layer);
    p->norm({x, layer ? delta : -1, a, ones, {}, 1e-5f});
    p->linear({random_weight("q5_0", kHeads * kHeadDim, kHidden, s + 2), random_weight("q4_1", kKvHeads * kHeadDim, kHidden, s + 3),
               random_weight("q8_0", kKvHeads * kHeadDim, kHidden, s + 4)}, a, qkv);
    p->heads({qkv, layer, kHeads, kHeadDim, 1e-6f, std::vector<float>(size_t(width), 0.01f), {}, std::vector<float>(kHeadDim, 1.1f), balance, cosine, sine});
    p->attention(qkv, mixed, layer, {kHeads, 0.25f, 0.f, layer ? window : 0});
    p->quantise(mixed, am);
    p->linear({random_weight("q4_0", kHidden, kHeads * kHeadDim, s + 5)}, am, delta);
    p->norm({x, delta, a, ones, std::vector<float>(layer ? kHidden : 0, 0.5f), 1e-5f});
    p->linear({random_weight("q4_1", kInner, kHidden, s + 6), random_weight("q4_1", kInner, kHidden, s + 7)}, a, gu);
    p->gate(gu, layer ? Gate::kGeluTanh : Gate::kSilu, ai);
    p->linear({random_weight("q5_0", kHidden, kInner, s + 8)}, ai, delta);
    p->bias(delta, std::vector<float>(kHidden, 0.02f));
  }
  p->norm({x, delta, al, ones, {}, 1e-5f});
  p->linear({table}, al, logits);
  p->soft_cap(logits, 30.f);
  p->sample(logits);
  p->cut_rows(piece_rows);
  p->finish();
  return {p, kv, logits};
}

std::vector<int32_t> prompt(int length, uint64_t seed) {
  test::Random random(seed);
  std::vector<int32_t> ids;
  for (int i = 0; i < length; i++) ids.push_back(random.below(kVocabulary));
  return ids;
}

// Slot s owns pages [16 s, 16 s + 16), so its locations are plain numbers.
std::vector<int32_t> locations(int slot, int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; i++) out.push_back(slot * 256 + i);
  return out;
}

Step start(int slot, const std::vector<int32_t>& ids) {
  Step s;
  s.tokens.push_back({slot, 0, ids});
  s.locations.push_back({slot, 0, locations(slot, 256)});
  return s;
}

struct Trace {  // what a request produced: ids and the logits of every sampled position
  std::vector<int32_t> ids;
  std::vector<float> logits;
};

void keep(Trace& trace, Recorded& r, const std::vector<int32_t>& sampled, size_t row) {
  const float* logits = r.program->buffer(r.logits).row(int64_t(row));
  trace.ids.push_back(sampled[row]);
  trace.logits.insert(trace.logits.end(), logits, logits + kVocabulary);
}

Trace alone(int lanes, const std::vector<int32_t>& ids, int outputs, int chunk, int window, int piece_rows = 64) {
  Recorded r = record(std::make_shared<ThreadPool>(lanes), window, 4, 0, false, piece_rows);
  Trace trace;
  const int n = int(ids.size());
  Step s = start(1, ids);
  for (int at = 0; at < n; at += chunk) {
    const int count = std::min(chunk, n - at);
    s.runs = {{1, at, count, at + count == n}};
    const auto sampled = r.program->run(s).sampled;
    if (!sampled.empty()) keep(trace, r, sampled, 0);
    s = Step();
  }
  for (int i = 0; i + 1 < outputs; i++) {
    s.runs = {{1, n + i, 1, true}};
    keep(trace, r, r.program->run(s).sampled, 0);
  }
  return trace;
}

}  // namespace

TEST(program_keeps_the_law_of_batches) {
  for (int window : {0, 40}) {
    const int outputs = 6;
    const std::vector<std::vector<int32_t>> prompts{prompt(170, 1), prompt(3, 2), prompt(65, 3), prompt(130, 4)};
    std::vector<Trace> want;
    for (const auto& ids : prompts) {
      want.push_back(alone(1, ids, outputs, 1000, window));
      for (float v : want.back().logits) CHECK(std::isfinite(v));
      const Trace chunked = alone(2, ids, outputs, 7, window);
      CHECK(chunked.ids == want.back().ids && test::same_bits(chunked.logits.data(), want.back().logits.data(), chunked.logits.size()));
    }
    Recorded r = record(std::make_shared<ThreadPool>(2), window);
    std::vector<Trace> got(4);
    Step s;  // all four in one prefill step, then decoded together
    for (int slot = 0; slot < 4; slot++) {
      const Step one = start(slot, prompts[size_t(slot)]);
      s.tokens.push_back(one.tokens[0]), s.locations.push_back(one.locations[0]);
      s.runs.push_back({slot, 0, int(prompts[size_t(slot)].size()), true});
    }
    for (int i = 0; i < outputs; i++) {
      const auto sampled = r.program->run(s).sampled;
      s = Step();
      for (int slot = 0; slot < 4; slot++) {
        keep(got[size_t(slot)], r, sampled, size_t(slot));
        s.runs.push_back({slot, int(prompts[size_t(slot)].size()) + i, 1, true});
      }
    }
    for (size_t i = 0; i < 4; i++)
      CHECK(got[i].ids == want[i].ids && test::same_bits(got[i].logits.data(), want[i].logits.data(), want[i].logits.size()));
  }
}

TEST(rows_in_pieces_give_the_bits_of_shared_operations) {
  const auto ids = prompt(100, 1);
  const Trace want = alone(2, ids, 2, 1000, 0, 0);
  for (int lanes : {1, 3})
    for (int piece_rows : {1, 7, 64}) {
      const Trace got = alone(lanes, ids, 2, 60, 0, piece_rows);
      CHECK(got.ids == want.ids && test::same_bits(got.logits.data(), want.logits.data(), want.logits.size()));
    }
}

TEST(balanced_keys_change_no_bit) {
  std::vector<float> logits;
  for (bool balanced : {false, true}) {
    Recorded r = record(std::make_shared<ThreadPool>(2), 0, 4, 0, balanced);
    Step s = start(1, prompt(170, 1));
    s.runs = {{1, 0, 170, true}};
    r.program->run(s);
    const float* row = r.program->buffer(r.logits).row(0);
    if (!balanced) logits.assign(row, row + kVocabulary);
    else CHECK(test::same_bits(logits.data(), row, logits.size()));
  }
}

// A ring of window pages, no larger than the window and a chunk, gives what a full layout gives, to the bit.
TEST(window_layers_with_pages_of_their_own_compute_the_same) {
  constexpr int kWindow = 40, kChunk = 7, kPages = (kWindow + kChunk + 15 + 15) / 16;
  const auto ids = prompt(170, 1);
  const Trace want = alone(2, ids, 30, kChunk, kWindow);
  Recorded r = record(std::make_shared<ThreadPool>(2), kWindow, 4, kPages);
  CHECK(r.kv->pages(1) == kPages && r.kv->kind(0) == 0 && r.kv->kind(1) == 1);
  Trace got;
  const int n = int(ids.size());
  Step s = start(1, ids);
  for (int at = 0; at < n + 29;) {
    const int count = at < n ? std::min(kChunk, n - at) : 1;
    std::vector<int32_t> ring;
    for (int p = at; p < at + count; p++) ring.push_back(p / 16 % kPages * 16 + p % 16);
    s.locations.push_back({1, at, ring, 1});
    s.runs = {{1, at, count, at + count >= n}};
    r.program->check(s);
    const auto sampled = r.program->run(s).sampled;
    if (!sampled.empty()) keep(got, r, sampled, 0);
    s = Step(), at += count;
  }
  CHECK(got.ids == want.ids && test::same_bits(got.logits.data(), want.logits.data(), want.logits.size()));
}

TEST(window_rows_are_copied_apart_and_checked) {
  Recorded r = record(std::make_shared<ThreadPool>(1), 40, 4, 3);
  const std::vector<float> ones(kHeadDim, 1.f), twos(kHeadDim, 2.f);
  for (int head = 0; head < kKvHeads; head++) r.kv->store(0, 1, head, ones.data(), ones.data()), r.kv->store(1, 1, head, twos.data(), twos.data());
  Step s;
  s.copies_from = {1}, s.copies_to = {18}, s.window_copies_from = {1}, s.window_copies_to = {34};
  r.program->run(s);
  float key[kHeadDim], value[kHeadDim];
  r.kv->load(0, 18, 0, key, value);
  CHECK(key[0] == 1.f && value[3] == 1.f);
  r.kv->load(1, 34, 1, key, value);
  CHECK(key[0] == 2.f && value[3] == 2.f);
  r.kv->load(1, 18, 1, key, value);
  CHECK(key[0] == 0.f);
  s.window_copies_to = {48};  // beyond the three window pages, though within the others
  CHECK_THROWS((r.program->check(s), 0));
  Step write;
  write.locations.push_back({0, 0, locations(0, 1), 2});
  CHECK_THROWS((r.program->check(write), 0));
  Recorded plain = record(std::make_shared<ThreadPool>(1), 40);
  write.locations[0].kind = 1;
  CHECK_THROWS((plain.program->check(write), 0));
}

TEST(stream_runs_launched_steps_in_order_and_signals) {
  auto pool = std::make_shared<ThreadPool>(2);
  Recorded r = record(pool);
  const auto ids = prompt(20, 5);
  const Trace want = alone(1, ids, 5, 1000, 0);
  ComputeStream stream(pool);
  Step s = start(1, ids);
  s.runs = {{1, 0, 20, true}};
  std::vector<int64_t> tickets{stream.launch(r.program, s)};
  for (int i = 0; i < 4; i++) {  // launched before the ids that they read are known on the host
    Step next;
    next.runs = {{1, 20 + i, 1, true}};
    tickets.push_back(stream.launch(r.program, next));
  }
  for (size_t i = 0; i < tickets.size(); i++) {
    const auto result = stream.wait(tickets[i]);
    CHECK(result.error.empty() && result.output.sampled == std::vector<int32_t>{want.ids[i]} && result.nanoseconds > 0);
  }
  CHECK(stream.completed() == 5);
  pollfd fd{stream.event_fd(), POLLIN, 0};
  CHECK(poll(&fd, 1, 1000) == 1);
  CHECK_THROWS(stream.wait(tickets[0]));
  CHECK_THROWS(stream.wait(99));
}

TEST(log_probabilities_do_not_depend_on_blocks_chunks_or_lanes) {
  const auto ids = prompt(50, 6);
  SamplingSettings settings;
  settings.temperature = 1, settings.seed = 7, settings.num_prompt = 50;
  settings.reports_output = true, settings.prompt_start = 3, settings.top_n = 4, settings.asked_ids = {5, 60};
  StepOutput want;
  for (const auto& [lanes, block, chunk] : {std::array{1, 64, 50}, {2, 1, 50}, {2, 7, 50}, {1, 3, 7}, {2, 64, 7}}) {
    Recorded r = record(std::make_shared<ThreadPool>(lanes), 0, block);
    StepOutput got;
    for (int at = 0; at < 50; at += chunk) {
      Step s;
      if (at == 0) s = start(1, ids), s.starts.push_back({1, settings});
      const int count = std::min(chunk, 50 - at);
      s.runs = {{1, at, count, at + count == 50}};
      const StepOutput part = r.program->run(s);
      got.sampled.insert(got.sampled.end(), part.sampled.begin(), part.sampled.end());
      got.reports.insert(got.reports.end(), part.reports.begin(), part.reports.end());
      got.ids.insert(got.ids.end(), part.ids.begin(), part.ids.end()), got.values.insert(got.values.end(), part.values.begin(), part.values.end());
    }
    CHECK(got.sampled.size() == 1 && got.reports.size() == 48);
    for (int i = 0; i < 48; i++) {
      const LogprobReport& report = got.reports[size_t(i)];
      const int32_t* at = got.ids.data() + 7 * i;
      const float* value = got.values.data() + 7 * i;
      CHECK(report.position == 3 + i && report.sampled == (i == 47) && report.top_n == 4 && report.asked == 2);
      CHECK(at[0] == (i == 47 ? got.sampled[0] : ids[size_t(3 + i)]) && at[5] == 5 && at[6] == 60);
      for (int n = 1; n < 4; n++) CHECK(value[n] >= value[n + 1]);
      for (int n = 1; n < 5; n++) CHECK(at[n] != at[0] || value[n] == value[0]);
    }
    if (want.ids.empty()) want = got;
    CHECK(got.sampled == want.sampled && got.ids == want.ids && test::same_bits(got.values.data(), want.values.data(), want.values.size()));
  }
}

TEST(steps_that_do_not_fit_are_refused_before_they_run) {
  Recorded r = record(std::make_shared<ThreadPool>(1));
  const auto refused = [&](auto change) {
    Step s = start(1, prompt(8, 1));
    s.runs = {{1, 0, 8, true}};
    r.program->check(s);
    change(s);
    CHECK_THROWS((r.program->check(s), 0));
  };
  refused([](Step& s) { s.runs[0].slot = 4; });
  refused([](Step& s) { s.runs[0].slot = -1; });
  refused([](Step& s) { s.runs[0].first = -1; });
  refused([](Step& s) { s.runs[0].count = 0; });
  refused([](Step& s) { s.runs[0].count = kMaxLen; });      // no room for the sampled token
  refused([](Step& s) { s.runs[0].first = INT32_MAX; });
  refused([](Step& s) { s.runs.push_back(s.runs[0]); });    // a slot twice
  refused([](Step& s) { s.tokens[0].values[3] = kVocabulary; });
  refused([](Step& s) { s.tokens[0].position = kMaxLen - 2; });
  refused([](Step& s) { s.locations[0].values[3] = 64 * 16; });
  refused([](Step& s) { s.locations[0].values[3] = 5; });  // not at its place within a page
  refused([](Step& s) { s.copies_from = {1}; });
  refused([](Step& s) { s.starts = {{4, {}}}; });
  refused([](Step& s) { s.starts = {{0, {}}}, s.starts[0].settings.top_p = 2; });
  refused([](Step& s) { s.masks = std::make_shared<Masks>(std::vector<int32_t>{1}, 2); });
  refused([](Step& s) { s.masks = std::make_shared<Masks>(std::vector<int32_t>{0}, 1); });
  refused([](Step& s) { s.runs[0].samples = false, s.masks = std::make_shared<Masks>(std::vector<int32_t>{0}, 2); });
  refused([](Step& s) { s.copies_from = {1}, s.copies_to = {-5}; });
}

TEST(recording_refuses_what_does_not_fit) {
  auto pool = std::make_shared<ThreadPool>(1);
  auto kv = std::make_shared<KvPool>(KvShape{1, 2, 16, KvType::kF32}, 4);
  Program p(pool, kv, {2, 64, 50, 8, 2});
  const int x = p.add_buffer(64, Domain::kTokens), a = p.add_activations(64, Domain::kTokens);
  CHECK_THROWS((p.quantise(7, a), 0));
  CHECK_THROWS((p.quantise(x, 7), 0));
  CHECK_THROWS((p.linear({random_weight("q4_0", 32, 32, 1)}, a, x), 0));
  CHECK_THROWS((p.embed(random_weight("q4_0", 40, 64, 1), 1.f, x), 0));
  CHECK_THROWS((p.norm({x, -1, a, std::vector<float>(63), {}, 1e-5f}), 0));
  CHECK_THROWS((p.sample(x), 0));
  CHECK_THROWS((p.attention(x, x, 0, {3, 1.f, 0.f, 0}), 0));
  CHECK_THROWS((p.check(Step()), 0));
  CHECK_THROWS((p.finish(), 0));  // activations that nobody reads
}
