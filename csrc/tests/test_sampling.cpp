// The sampler against a plain walk over a full sort with the same weights: equal ids, whatever the lanes, blocks and neighbours.
#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "kernels/kernels.h"
#include "sampling/sampler.h"
#include "tests/check.h"

using namespace sapwood;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Steering as the specification says it, on a whole copy of the row.
std::vector<float> steered(const std::vector<float>& logits, const SamplingSettings& s, const std::vector<int32_t>& completion,
                           const std::vector<uint32_t>& allowed) {
  std::vector<float> x = logits;
  for (int32_t id = 0; id < int32_t(x.size()); id++) {
    const auto count = std::count(completion.begin(), completion.end(), id);
    if (count > 0 && s.penalises()) {
      x[size_t(id)] -= s.frequency * float(count);
      x[size_t(id)] -= s.presence;
      x[size_t(id)] = x[size_t(id)] > 0 ? x[size_t(id)] / s.repetition : x[size_t(id)] * s.repetition;
    }
  }
  for (const auto& [id, bias] : s.biases) x[size_t(id)] += bias;
  if (int32_t(completion.size()) < s.min_new)
    for (int32_t id : s.ending_ids) x[size_t(id)] = -kInfinity;
  if (!allowed.empty())
    for (size_t id = 0; id < x.size(); id++)
      if (!(allowed[id / 32] >> (id % 32) & 1)) x[id] = -kInfinity;
  return x;
}

int32_t plain_choice(const std::vector<float>& x, const SamplingSettings& s, uint64_t bits) {
  const int64_t n = int64_t(x.size());
  const float highest = *std::max_element(x.begin(), x.end());
  if (s.greedy()) return int32_t(std::max_element(x.begin(), x.end()) - x.begin());
  std::vector<float> weights(x.size());
  kernels().weights(x.data(), n, highest, s.temperature, weights.data());
  const bool limited = s.top_k > 0 && s.top_k < n, ranked = limited || s.top_p < 1;
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  if (ranked) std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[size_t(a)] > x[size_t(b)]; });
  if (limited) order.resize(size_t(s.top_k));
  uint64_t mass = 0, kept = 0;
  for (int32_t id : order) mass += fixed_weight(weights[size_t(id)]);
  std::vector<int32_t> left;
  for (int32_t id : order) {
    if (s.top_p < 1 && !(double(kept) < s.top_p * double(mass))) break;
    const float w = weights[size_t(id)];
    if (ranked ? fixed_weight(w) < fixed_weight(s.min_p) : w < s.min_p) {
      if (ranked) break;
      continue;
    }
    left.push_back(id), kept += fixed_weight(w);
  }
  uint64_t target = uint64_t((static_cast<unsigned __int128>(bits) * kept) >> 53);
  for (int32_t id : left) {
    if (target < fixed_weight(weights[size_t(id)])) return id;
    target -= fixed_weight(weights[size_t(id)]);
  }
  return left.back();
}

struct Row {
  SamplingSettings settings;
  std::vector<float> logits;
  std::vector<int32_t> completion;
  std::vector<uint32_t> allowed;
};

std::vector<float> random_logits(test::Random& random, int vocabulary, int kind) {
  std::vector<float> x(static_cast<size_t>(vocabulary));
  for (auto& v : x)
    v = kind == 0 ? 3 * random.gauss() : kind == 1 ? float(random.below(5)) : kind == 2 ? 0.01f * random.gauss() : 40 * random.gauss();
  return x;
}

Row random_row(test::Random& random, int vocabulary) {
  Row r;
  r.logits = random_logits(random, vocabulary, random.below(4));
  SamplingSettings& s = r.settings;
  if (random.below(5) > 0) s.temperature = random.below(4) ? 0.3f + 0.5f * (1 + random.uniform()) : 0.01f;
  if (random.below(2)) s.top_k = 1 + random.below(random.below(2) ? vocabulary : std::min(vocabulary, 50));
  if (random.below(2)) s.top_p = 0.01 + 0.98 * double(1 + random.uniform()) / 2;
  if (random.below(3) == 0) s.min_p = 0.02f * (1 + random.uniform());
  if (random.below(3) == 0) s.frequency = random.uniform(), s.presence = random.uniform(), s.repetition = 1.3f;
  s.seed = random.bits(), s.sample_index = random.below(3), s.num_prompt = random.below(5), s.min_new = random.below(12);
  for (int i = random.below(40); i > 0; i--) r.completion.push_back(random.below(random.below(2) ? vocabulary : std::min(vocabulary, 9)));
  if (random.below(2))
    for (int id = random.below(9); id < vocabulary; id += 1 + random.below(vocabulary)) s.ending_ids.push_back(id), s.biases.push_back({id, 4 * random.uniform()});
  if (s.ending_ids.size() == size_t(vocabulary)) s.ending_ids.pop_back();
  if (random.below(4) == 0) {
    for (int i = 0; i < (vocabulary + 31) / 32; i++) r.allowed.push_back(random.bits() & random.bits());
    r.allowed[0] |= 1, s.ending_ids.clear();
  }
  return r;
}

// Samples all rows with a pool of `lanes`, in blocks of `block` rows.
std::vector<int32_t> sample(std::vector<Row>& rows, int lanes, int block) {
  const int vocabulary = int(rows[0].logits.size());
  ThreadPool pool(lanes);
  Sampler sampler(int32_t(rows.size()), vocabulary, block, lanes);
  StepOutput output;
  output.sampled.resize(rows.size());
  for (size_t i = 0; i < rows.size(); i++) sampler.start({int32_t(i), rows[i].settings});
  for (size_t first = 0; first < rows.size(); first += size_t(block)) {
    const size_t count = std::min(size_t(block), rows.size() - first);
    std::vector<float> logits;
    std::vector<std::vector<int32_t>> tokens(count);
    std::vector<LogitRow> work;
    for (size_t i = 0; i < count; i++) {
      Row& r = rows[first + i];
      logits.insert(logits.end(), r.logits.begin(), r.logits.end());
      tokens[i].assign(size_t(r.settings.num_prompt), 0);
      tokens[i].insert(tokens[i].end(), r.completion.begin(), r.completion.end());
      tokens[i].push_back(-1);
      work.push_back({0, int32_t(first + i), int32_t(tokens[i].size()) - 1, tokens[i].data(), r.allowed.empty() ? nullptr : r.allowed.data(),
                      int32_t(first + i), -1});
    }
    sampler.prepare(work.data(), int64_t(count), logits.data(), vocabulary, output);
    pool.run([&](Lane& lane) { sampler.run(lane); });
    for (size_t i = 0; i < count; i++) CHECK(tokens[i].back() == output.sampled[first + i]);
  }
  return output.sampled;
}

}  // namespace

TEST(sampled_ids_are_those_of_a_plain_walk) {
  test::Random random(1);
  for (int vocabulary : {1, 3, 31, 97, 1023, 1024, 1025, 5000}) {
    std::vector<Row> rows;
    std::vector<int32_t> want;
    for (int i = 0; i < 40; i++) {
      rows.push_back(random_row(random, vocabulary));
      const Row& r = rows.back();
      const auto position = r.settings.num_prompt + int64_t(r.completion.size());
      const uint64_t bits = random_bits(r.settings.seed, r.settings.sample_index, position);
      want.push_back(plain_choice(steered(r.logits, r.settings, r.completion, r.allowed), r.settings, bits));
    }
    CHECK(sample(rows, 1, 40) == want);
    CHECK(sample(rows, 2, 7) == want);
    CHECK(sample(rows, 3, 1) == want);
  }
}

TEST(masses_are_the_sums_of_the_weights_on_every_instruction_set) {
  test::Random random(2);
  for (const KernelTable* isa : supported_kernels()) {
    select_kernels(isa->name);
    for (int n : {1, 7, 8, 255, 256, 257, 1024}) {
      const auto x = random_logits(random, n, random.below(4));
      const float top = *std::max_element(x.begin(), x.end());
      CHECK(kernels().largest(x.data(), n) == top);
      std::vector<float> w(x.size()), plain(x.size());
      for (float temperature : {1.f, 0.7f, 1e-3f, 1e30f}) {
        kernels().weights(x.data(), n, top, temperature, w.data());
        supported_kernels().back()->weights(x.data(), n, top, temperature, plain.data());
        CHECK(test::same_bits(w.data(), plain.data(), w.size()));
        uint64_t all = 0, heavy = 0;
        for (float v : w) all += fixed_weight(v), heavy += v >= 0.01f ? fixed_weight(v) : 0;
        CHECK(kernels().mass(x.data(), n, top, temperature, 0.f) == all && kernels().mass(x.data(), n, top, temperature, 0.01f) == heavy);
      }
    }
  }
  select_kernels("auto");
  CHECK(fixed_weight(1.f) == uint64_t(1) << 44 && fixed_weight(0.f) == 0 && fixed_weight(0x1p-46f) == 0);
}

TEST(logits_that_are_not_numbers_still_give_an_id) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float odd : {nan, kInfinity, -kInfinity}) {
    for (int fill = 0; fill < 2; fill++) {
      std::vector<Row> rows(4);
      for (auto& r : rows) r.logits.assign(2000, fill ? odd : 1.f), r.logits[1500] = odd;
      rows[1].settings.temperature = rows[2].settings.temperature = rows[3].settings.temperature = 1;
      rows[2].settings.top_p = 0.5, rows[3].settings.top_k = 3;
      for (int32_t id : sample(rows, 2, 4)) CHECK(id >= 0 && id < 2000 && (!(odd == -kInfinity) || fill || id != 1500));
    }
  }
}

TEST(the_best_ids_and_their_log_probabilities) {
  test::Random random(3);
  for (int vocabulary : {5, 1500, 4096}) {
    for (int kind = 0; kind < 4; kind++) {
      const auto x = random_logits(random, vocabulary, kind);
      const Segments segments{vocabulary};
      std::vector<float> largest;
      uint64_t mass = 0;
      const float top = *std::max_element(x.begin(), x.end());
      for (int64_t s = 0; s < segments.count(); s++) {
        largest.push_back(kernels().largest(&x[size_t(segments.first(s))], segments.size(s)));
        mass += kernels().mass(&x[size_t(segments.first(s))], segments.size(s), top, 1.f, 0.f);
      }
      std::vector<int32_t> order(x.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[size_t(a)] > x[size_t(b)]; });
      BestIds best;
      for (int n : {0, 1, 5, 128}) {
        n = std::min(n, vocabulary);
        CHECK(best.find(x.data(), segments, largest.data(), n) == std::vector<int32_t>(order.begin(), order.begin() + n));
      }
      double sum = 0;
      for (float v : x) sum += std::exp(double(v) - top);
      const LogNormaliser normalise(top, mass);
      for (int i = 0; i < 50; i++) {
        const float v = x[size_t(random.below(vocabulary))];
        CHECK(std::fabs(normalise(v) - (double(v) - top - std::log(sum))) < 1e-6 * (1 + std::fabs(v - top)));
      }
    }
  }
}

TEST(settings_out_of_range_are_refused) {
  const auto refused = [](auto change) {
    SamplingSettings s;
    check(s, 10);
    change(s);
    CHECK_THROWS((check(s, 10), 0));
  };
  refused([](SamplingSettings& s) { s.temperature = -1; });
  refused([](SamplingSettings& s) { s.temperature = 1e-30f; });
  refused([](SamplingSettings& s) { s.temperature = kInfinity; });
  refused([](SamplingSettings& s) { s.top_k = -1; });
  refused([](SamplingSettings& s) { s.top_p = 0; });
  refused([](SamplingSettings& s) { s.top_p = std::nan(""); });
  refused([](SamplingSettings& s) { s.min_p = 1.5f; });
  refused([](SamplingSettings& s) { s.repetition = 0; });
  refused([](SamplingSettings& s) { s.ending_ids = {10}; });
  refused([](SamplingSettings& s) { s.ending_ids = {3, 3}; });
  refused([](SamplingSettings& s) { s.biases = {{-1, 1.f}}; });
  refused([](SamplingSettings& s) { s.biases = {{1, std::nanf("")}}; });
  refused([](SamplingSettings& s) { s.asked_ids = {11}; });
  refused([](SamplingSettings& s) { s.top_n = 11; });
  refused([](SamplingSettings& s) { s.num_prompt = -1; });
}
