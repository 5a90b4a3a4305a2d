// Attention against fp64, and the law of batches: alone, batched, chunked by 7, shared, split, 1 to 3 threads - same bits.
#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "attention/attention.h"
#include "core/error.h"
#include "kernels/kernels.h"
#include "tests/check.h"

using namespace sapwood;

namespace {

struct Model {
  int query_heads, kv_heads, head_dim;
  AttentionShape shape;
};

// Requests of given lengths over one pool with shuffled pages; queries for every position of every request exist.
struct World {
  Model model;
  KvPool pool;
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::vector<float>> queries;  // [request][position][query head * head_dim]

  // The first `shared` tokens (a multiple of 16) of all requests lie in the same pages.
  World(const Model& m, KvType type, const std::vector<int>& lengths, int shared, uint64_t seed)
      : model(m), pool({1, m.kv_heads, m.head_dim, type}, 4 + pages_for(lengths, shared)) {
    test::Random random(seed);
    std::vector<int32_t> order(size_t(pool.pages()));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size() - 1; i > 0; i--) std::swap(order[i], order[size_t(random.below(int(i) + 1))]);
    poison();
    size_t next = 0;
    std::vector<int32_t> prefix;
    for (int t = 0; t < shared; t++) prefix.push_back(order[next + size_t(t / kPageTokens)] * kPageTokens + t % kPageTokens);
    next += size_t(shared / kPageTokens);
    for (size_t r = 0; r < lengths.size(); r++) {
      tables.push_back(prefix);
      for (int t = shared; t < lengths[r]; t++) {
        if (t % kPageTokens == 0) next++;
        tables[r].push_back(order[next - 1] * kPageTokens + t % kPageTokens);
      }
      tables[r].resize(size_t(lengths[r]));
      for (int t = r ? shared : 0; t < lengths[r]; t++) write(tables[r][size_t(t)], random);
      queries.emplace_back(size_t(lengths[r]) * size_t(m.query_heads * m.head_dim));
      for (auto& q : queries[r]) q = random.gauss();
    }
  }
  static int64_t pages_for(const std::vector<int>& lengths, int shared) {
    int64_t pages = shared / kPageTokens;
    for (int n : lengths) pages += (std::max(n - shared, 0) + kPageTokens - 1) / kPageTokens;
    return pages;
  }
  void write(int32_t location, test::Random& random) {
    std::vector<float> k(size_t(model.head_dim)), v(size_t(model.head_dim));
    for (int h = 0; h < model.kv_heads; h++) {
      for (auto& x : k) x = random.gauss();
      for (auto& x : v) x = random.gauss();
      pool.store(0, location, h, k.data(), v.data());
    }
  }
  void poison() {  // what earlier owners leave behind must not matter, not even NaN
    std::vector<float> nan(size_t(model.head_dim), std::numeric_limits<float>::quiet_NaN());
    for (int64_t l = 0; l < pool.pages() * kPageTokens; l++)
      for (int h = 0; h < model.kv_heads; h++) pool.store(0, l, h, nan.data(), nan.data());
  }
};

struct Part {
  int request, begin, end;  // query positions [begin, end)
};

// Runs one step with the given parts; returns the rows in order.
std::vector<float> step(const World& w, const std::vector<Part>& parts, int lanes) {
  const int width = w.model.query_heads * w.model.head_dim;
  std::vector<Segment> segments;
  std::vector<float> q;
  for (const auto& p : parts) {
    segments.push_back({w.tables[size_t(p.request)].data(), int(q.size()) / width, p.end - p.begin, p.end});
    const auto& from = w.queries[size_t(p.request)];
    q.insert(q.end(), from.begin() + int64_t(p.begin) * width, from.begin() + int64_t(p.end) * width);
  }
  AttentionPlan plan;
  plan.build(segments, {w.model.query_heads / w.model.kv_heads, w.model.kv_heads, w.model.shape.window, lanes});
  Attention attention(w.pool.shape(), w.model.query_heads, lanes);
  attention.prepare(plan);
  std::vector<float> out(q.size());
  ThreadPool pool(lanes);
  pool.run([&](Lane& lane) {
    attention.run(lane, {plan, w.pool, 0, w.model.shape, q.data(), width, out.data(), width});
  });
  return out;
}

double worst_error(const World& w, const Part& part, const std::vector<float>& out) {
  const int hd = w.model.head_dim, group = w.model.query_heads / w.model.kv_heads;
  double worst = 0;
  std::vector<float> k(static_cast<size_t>(hd)), v(static_cast<size_t>(hd));
  for (int p = part.begin; p < part.end; p++)
    for (int h = 0; h < w.model.query_heads; h++) {
      const float* q = &w.queries[size_t(part.request)][size_t((p * w.model.query_heads + h) * hd)];
      std::vector<double> s, o(size_t(hd), 0.0);
      std::vector<std::vector<float>> values;
      for (int t = w.model.shape.window ? std::max(0, p - w.model.shape.window + 1) : 0; t <= p; t++) {
        w.pool.load(0, w.tables[size_t(part.request)][size_t(t)], h / group, k.data(), v.data());
        double dot = 0;
        for (int d = 0; d < hd; d++) dot += double(q[d]) * k[size_t(d)];
        dot *= w.model.shape.scale;
        if (w.model.shape.soft_cap > 0) dot = w.model.shape.soft_cap * std::tanh(dot / w.model.shape.soft_cap);
        s.push_back(dot), values.push_back(v);
      }
      const double m = *std::max_element(s.begin(), s.end());
      double l = 0;
      for (size_t t = 0; t < s.size(); t++) {
        const double e = std::exp(s[t] - m);
        l += e;
        for (int d = 0; d < hd; d++) o[size_t(d)] += e * values[t][size_t(d)];
      }
      for (int d = 0; d < hd; d++)
        worst = std::max(worst, std::fabs(o[size_t(d)] / l - out[size_t(((p - part.begin) * w.model.query_heads + h) * hd + d)]));
    }
  return worst;
}

Model model_of(int q, int kv, int hd, int window = 0, float cap = 0) { return {q, kv, hd, {q, 1.f / std::sqrt(float(hd)), cap, window}}; }

}  // namespace

TEST(attention_agrees_with_fp64) {
  for (KvType type : {KvType::kF16, KvType::kF32, KvType::kI8})
    for (const Model& m : {model_of(9, 3, 64), model_of(4, 1, 128), model_of(2, 2, 256), model_of(6, 2, 40), model_of(4, 2, 64, 50), model_of(4, 2, 64, 0, 20.f),
                           model_of(4, 1, 64, 130, 5.f), model_of(64, 1, 16)}) {
      const World w(m, type, {1, 150, 291}, 0, 4);
      for (const Part& part : {Part{0, 0, 1}, Part{1, 0, 150}, Part{2, 290, 291}, Part{2, 120, 140}}) {
        const double error = worst_error(w, part, step(w, {part}, 2));
        if (!(error < 3e-6)) std::printf("  heads %d/%d dim %d window %d: %g\n", m.query_heads, m.kv_heads, m.head_dim, m.shape.window, error);
        CHECK(error < 3e-6);
      }
    }
}

TEST(attention_is_the_same_alone_batched_chunked_and_threaded) {
  for (KvType type : {KvType::kF16, KvType::kF32, KvType::kI8})
    for (const Model& m : {model_of(9, 3, 64), model_of(14, 2, 64), model_of(4, 2, 40, 33), model_of(4, 2, 64, 200, 10.f)}) {
      const std::vector<int> lengths{300, 17, 129, 1, 256};
      const World w(m, type, lengths, 0, 7);
      const size_t width = size_t(m.query_heads * m.head_dim);
      std::vector<std::vector<float>> whole;
      std::vector<Part> all, last;
      for (int r = 0; r < int(lengths.size()); r++) {
        all.push_back({r, 0, lengths[size_t(r)]}), last.push_back({r, lengths[size_t(r)] - 1, lengths[size_t(r)]});
        whole.push_back(step(w, {all.back()}, 1));
        for (int at = 0; at < lengths[size_t(r)]; at += 7) {  // chunked by 7
          const Part part{r, at, std::min(at + 7, lengths[size_t(r)])};
          const auto out = step(w, {part}, 1);
          CHECK(test::same_bits(out.data(), &whole.back()[size_t(at) * width], out.size()));
        }
      }
      for (int lanes : {1, 2, 3})
        for (const auto& parts : {all, last}) {
          const auto out = step(w, parts, lanes);
          size_t at = 0;
          for (const auto& p : parts) {
            const size_t n = size_t(p.end - p.begin) * width;
            CHECK(test::same_bits(&out[at], &whole[size_t(p.request)][size_t(p.begin) * width], n));
            at += n;
          }
        }
    }
}

TEST(shared_prefix_pages_give_the_same_bits_as_private_passes) {
  for (KvType type : {KvType::kF16, KvType::kF32, KvType::kI8}) {
    const Model m = model_of(9, 3, 64);
    const std::vector<int> lengths{530, 513, 600, 514, 700, 530, 531};
    const World w(m, type, lengths, 512, 12);
    const size_t width = size_t(m.query_heads * m.head_dim);
    std::vector<Part> parts;
    for (int r = 0; r < int(lengths.size()); r++) parts.push_back({r, lengths[size_t(r)] - (r % 3 + 1), lengths[size_t(r)]});
    parts[6].begin = 500;  // starts inside the shared prefix: shares only the chunks before its first row
    for (int lanes : {1, 2}) {
      const auto out = step(w, parts, lanes);
      size_t at = 0;
      for (const auto& p : parts) {
        const auto alone = step(w, {p}, 1);
        CHECK(test::same_bits(&out[at], alone.data(), alone.size()));
        CHECK(worst_error(w, p, alone) < 3e-6);
        at += size_t(p.end - p.begin) * width;
      }
    }
  }
}

TEST(plan_shares_exactly_the_common_whole_chunks) {
  const World w(model_of(2, 1, 16), KvType::kF32, {300, 290, 140, 100}, 96, 1);
  std::vector<int32_t> a(600), b(600), c(600);
  for (int t = 0; t < 600; t++) a[size_t(t)] = t, b[size_t(t)] = t < 256 ? t : 1000 + t, c[size_t(t)] = t < 128 ? t : 2000 + t;
  AttentionPlan plan;
  plan.build({{a.data(), 0, 1, 600}, {b.data(), 1, 2, 600}, {c.data(), 3, 1, 600}, {c.data(), 4, 1, 128}}, {2, 1, 0, 1});
  CHECK(plan.chunks_ahead(0) == 2 && plan.chunks_ahead(1) == 2 && plan.chunks_ahead(2) == 1 && plan.chunks_ahead(3) == 1);
  CHECK(plan.ahead().size() == 2 && plan.partials() == 2 + 4 + 1 + 1);
  plan.build({{a.data(), 0, 1, 600}, {a.data(), 1, 1, 600}}, {2, 1, 64, 1});
  CHECK(plan.ahead().empty());
  plan.build({{a.data(), 0, 1, 600}}, {2, 1, 0, 2});  // one long request on two lanes: its whole chunks are spread
  CHECK(plan.chunks_ahead(0) == 4 && plan.strips().size() == 1);
  CHECK_THROWS((plan.build({{a.data(), 0, 3, 2}}, {2, 1, 0, 1}), 0));
}

TEST(kernels_of_every_isa_attend_alike) {
  for (KvType type : {KvType::kF16, KvType::kF32, KvType::kI8})
    for (const Model& m : {model_of(6, 2, 64), model_of(3, 1, 40), model_of(7, 1, 64, 30)})
      for (int first : {150, 197, 198, 199}) {  // passes of many vectors, and of few: each cut into other tiles
        const World w(m, type, {200}, 0, 3);
        const auto best = step(w, {{0, first, 200}}, 1);
        select_kernels("portable");
        const World stored_plainly(m, type, {200}, 0, 3);
        const auto plain = step(stored_plainly, {{0, first, 200}}, 1);
        select_kernels("auto");
        CHECK(test::same_bits(best.data(), plain.data(), best.size()));
      }
}

TEST(eight_bits_are_the_nearest_code_of_each_group) {
  test::Random random(5);
  for (int dim : {1, 8, 31, 32, 40, 64, 96, 200}) {
    const KvPool pool({2, 2, dim, KvType::kI8}, 2);
    CHECK(pool.shape().page_bytes() == 2 * 16 * (dim + pool.shape().padded_dim() + 4 * scale_groups(dim)));
    std::vector<float> k(static_cast<size_t>(dim)), v(k), k_back(k), v_back(k);
    for (int64_t location = 0; location < 32; location++) {
      for (int d = 0; d < dim; d++) k[size_t(d)] = random.gauss() * (d % 7 ? 1.f : 100.f), v[size_t(d)] = random.gauss() * 0.01f;
      pool.store(1, location, 1, k.data(), v.data());
      pool.load(1, location, 1, k_back.data(), v_back.data());
      for (const auto& [x, y] : {std::pair{&k, &k_back}, std::pair{&v, &v_back}})
        for (int first = 0; first < dim; first += kScaleDims) {
          float largest = 0;
          const int end = std::min(dim, first + kScaleDims);
          for (int d = first; d < end; d++) largest = std::max(largest, std::fabs((*x)[size_t(d)]));
          for (int d = first; d < end; d++) CHECK(std::fabs((*x)[size_t(d)] - (*y)[size_t(d)]) <= largest / 127 * 0.505f + largest * 0.001f);
        }
    }
  }
}

TEST(eight_bits_keep_zero_and_spread_nan) {
  const KvPool pool({1, 1, 40, KvType::kI8}, 1);
  std::vector<float> zero(40), bad(40, 1.f), key(40), value(40);
  bad[35] = std::numeric_limits<float>::quiet_NaN();
  pool.store(0, 3, 0, zero.data(), bad.data());
  pool.load(0, 3, 0, key.data(), value.data());
  for (int d = 0; d < 40; d++) CHECK(key[size_t(d)] == 0 && (d < 32 ? std::fabs(value[size_t(d)] - 1.f) < 0.001f : std::isnan(value[size_t(d)])));
}

TEST(copied_tokens_are_equal_to_the_bit) {
  for (KvType type : {KvType::kF16, KvType::kF32, KvType::kI8}) {
    const World w(model_of(4, 2, 40), type, {64}, 0, 9);
    const auto row = [&](int32_t location, int head) {
      std::vector<float> out(80);
      w.pool.load(0, location, head, out.data(), out.data() + 40);
      return out;
    };
    const std::vector<int32_t> from{w.tables[0][3], w.tables[0][20], w.tables[0][47]}, to{w.tables[0][50], w.tables[0][61], w.tables[0][46]};
    std::vector<std::vector<float>> truth;
    for (int32_t location : from)
      for (int h : {0, 1}) truth.push_back(row(location, h));
    w.pool.copy_tokens(0, from.data(), to.data(), 3);
    for (size_t i = 0; i < 3; i++)
      for (int h : {0, 1}) CHECK(test::same_bits(row(to[i], h).data(), truth[2 * i + size_t(h)].data(), 80));
  }
}
