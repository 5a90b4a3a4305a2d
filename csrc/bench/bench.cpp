// Kernel tables: GMAC/s and GB/s per shape with cold weights (a ring of copies larger than the cache), best / median.
// Usage: sapwood_bench FORMAT [isa=auto] [rows=1,4,8,32,512] [threads=2] [seconds=0.2] [shape=KxN] [clock=wall|cpu] [leads=6]
//        sapwood_bench attention [rows=1,16,512] [context=512] [requests=1] [shared=0] [heads=9] [kv_heads=3] [dim=64] [kv=16] ...
// Attention: the last `rows` rows of each request over `context` tokens, the first `shared` of them in the same pages for all;
// a product with a token that no row sees does not count.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "linear/linear.h"

using namespace sapwood;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_now() {  // what this thread alone has computed: on a busy machine and with one thread steadier than the wall's clock
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

std::vector<std::shared_ptr<Weight>> ring_of(Format format, int64_t n, int64_t k, ThreadPool& pool) {
  std::vector<std::byte> raw(size_t(raw_bytes(format, n, k)));
  uint64_t state = 1;
  for (auto& b : raw) state = state * 6364136223846793005ull + 1442695040888963407ull, b = std::byte((state >> 33) & 0x1b);
  std::vector<std::shared_ptr<Weight>> ring;
  for (size_t bytes = 0; bytes < (size_t(100) << 20);) {
    ring.push_back(Weight::pack(format, raw.data(), int64_t(raw.size()), n, k, pool));
    bytes += ring.back()->size_bytes();
  }
  return ring;
}

// `leads`: in one group of so many a number stands out; 0: in none.
void measure(const std::vector<Linear>& ring, ThreadPool& pool, int rows, int leads, double seconds, double (*clock)()) {
  const int64_t k = ring[0].k(), n = ring[0].columns();
  Activations input(rows, k, ring[0].want());
  std::vector<float> x(size_t(k), 0.25f);
  for (int64_t i = 0; i < k; i++) x[size_t(i)] = (float(i * 37 % 101) - 50.f) * (leads > 0 && i % (32 * leads) == 5 ? 8.f : 1.f);
  for (int r = 0; r < rows; r++) kernels().quantize(x.data(), k, input.row(r));
  Array<float> out(size_t(rows) * size_t(n));
  std::vector<double> times;
  const double end = now() + seconds;
  for (size_t i = 0; times.size() < 5 || now() < end; i++) {
    const Linear& linear = ring[i % ring.size()];
    const double start = clock();
    pool.run([&](Lane& lane) { linear.run(lane, input.view(), rows, out.data(), n); });
    times.push_back(clock() - start);
  }
  std::sort(times.begin(), times.end());
  const double best = times[0], median = times[times.size() / 2], work = 1e-9 * rows * double(k) * double(n);
  const double bytes = 1e-9 * double(ring[0].size_bytes());
  std::printf(" | %d: %.0f/%.0f", rows, work / best, work / median);
  if (rows <= 4) std::printf(" (%.1f/%.1f GB/s)", bytes / best, bytes / median);
  std::fflush(stdout);
}

using Options = std::map<std::string, std::string>;

std::vector<int> numbers(const std::string& list) {
  std::vector<int> out;
  for (size_t at = 0; at < list.size(); at = std::min(list.find(',', at), list.size() - 1) + 1) out.push_back(std::atoi(list.c_str() + at));
  return out;
}

void measure_attention(const Options& options, ThreadPool& pool, int rows) {
  const auto number = [&](const char* name) { return std::stoi(options.at(name)); };
  const int heads = number("heads"), kv_heads = number("kv_heads"), dim = number("dim"), width = heads * dim, requests = number("requests");
  const int context = number("context"), shared = number("shared") / kPageTokens * kPageTokens, bits = number("kv"), layers = number("layers");
  const int own = (context - shared + kPageTokens - 1) / kPageTokens * kPageTokens;
  const KvPool kv({layers, kv_heads, dim, bits == 8 ? KvType::kI8 : bits == 16 ? KvType::kF16 : KvType::kF32}, (shared + requests * own) / kPageTokens);
  std::vector<float> x(size_t(rows * requests * width)), out(x.size());
  for (size_t i = 0; i < x.size(); i++) x[i] = float(i * 37 % 101) * 0.04f - 2.f;
  for (int layer = 0; layer < layers; layer++)
    for (int t = 0; t < kv.pages() * kPageTokens; t++)
      for (int h = 0; h < kv_heads; h++) kv.store(layer, t, h, &x[size_t(t * 7 % 512)], &x[size_t(t * 3 % 512)]);
  std::vector<std::vector<int32_t>> tables(static_cast<size_t>(requests), std::vector<int32_t>(size_t(context)));
  std::vector<Segment> segments;
  for (int r = 0; r < requests; r++) {
    for (int t = 0; t < context; t++) tables[size_t(r)][size_t(t)] = t < shared ? t : t + r * own;
    segments.push_back({tables[size_t(r)].data(), r * rows, rows, context});
  }
  AttentionPlan plan;
  plan.build(segments, {heads / kv_heads, kv_heads, 0, pool.lanes()});
  Attention attention(kv.shape(), heads, pool.lanes());
  attention.prepare(plan);
  std::vector<double> times;
  const double end = now() + std::stod(options.at("seconds"));
  for (int i = 0; times.size() < 5 || now() < end; i++) {
    const auto clock = options.at("clock") == "cpu" ? cpu_now : now;
    const double start = clock();
    pool.run([&](Lane& lane) {
      attention.run(lane, {plan, kv, i % layers, {heads, 0.125f, 0, 0}, x.data(), width, out.data(), width});
    });
    times.push_back(clock() - start);
  }
  std::sort(times.begin(), times.end());
  const double work = 2e-9 * requests * width * rows * (context - 0.5 * (rows - 1));
  std::printf(" | %d: %.1f/%.1f", rows, work / times[0], work / times[times.size() / 2]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options{{"isa", "auto"}, {"rows", "1,2,4,8,16,32,128,512"}, {"threads", "2"}, {"seconds", "0.2"}, {"shape", ""}, {"clock", "wall"},
                  {"context", "512"}, {"requests", "1"}, {"shared", "0"}, {"heads", "9"}, {"kv_heads", "3"}, {"dim", "64"}, {"kv", "16"}, {"layers", "8"}, {"leads", "6"}};
  for (int i = 2; i < argc; i++)
    if (const char* eq = std::strchr(argv[i], '=')) options[std::string(argv[i], size_t(eq - argv[i]))] = eq + 1;
  const std::string what = argc > 1 ? argv[1] : "q4_1";
  select_kernels(options["isa"].c_str());
  ThreadPool pool(std::stoi(options["threads"]));
  pool.settle_caller();
  if (what == "attention") {
    std::printf("attention %s t%d", kernels().name, pool.lanes());
    for (int rows : numbers(options["rows"])) measure_attention(options, pool, rows);
    return std::printf("\n"), 0;
  }
  const Format format = format_named(what);
  std::vector<std::pair<int64_t, int64_t>> shapes{{576, 960}, {576, 3072}, {1536, 576}, {896, 9728}, {4864, 896}};
  if (!options["shape"].empty()) {
    long long k = 0, n = 0;
    if (std::sscanf(options["shape"].c_str(), "%lldx%lld", &k, &n) == 2) shapes = {{k, n}};
  }
  for (auto [k, n] : shapes) {
    if (k % info(format).block_weights) continue;
    std::vector<Linear> ring;
    for (const auto& w : ring_of(format, n, k, pool)) ring.emplace_back(std::vector{w});
    std::printf("%-5s %s t%d %4lldx%-5lld", info(format).name, kernels().name, pool.lanes(), (long long)k, (long long)n);
    for (int rows : numbers(options["rows"]))
      measure(ring, pool, rows, std::stoi(options["leads"]), std::stod(options["seconds"]), options["clock"] == "cpu" ? cpu_now : now);
    std::printf("\n");
  }
}
