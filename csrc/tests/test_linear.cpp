// Linears of every format: against fp64, bitwise over rows / threads / instruction sets, extreme codes, refused sizes.
#include <algorithm>
#include <limits>
#include <memory>

#include "core/error.h"
#include "core/half.h"
#include "linear/linear.h"
#include "linear/pack.h"
#include "tests/check.h"

using namespace sapwood;

namespace {

const char* const kAll[] = {"q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0", "f16", "bf16", "f32"};

// Random bytes with tame scales: every 16-bit scale field is overwritten with a small number.
std::vector<std::byte> random_raw(Format format, int64_t rows, int64_t k, test::Random& random) {
  std::vector<std::byte> raw(size_t(raw_bytes(format, rows, k)));
  for (auto& b : raw) b = std::byte(random.bits());
  const FormatInfo& f = info(format);
  const auto put = [&](size_t at, uint16_t v) { std::memcpy(&raw[at], &v, 2); };
  const bool loose = f.block_weights == 1;
  for (size_t at = 0; at < raw.size(); at += size_t(f.block_bytes)) {
    const float x = 0.01f + 0.002f * random.uniform();
    if (format == Format::kF32) {
      const float w = random.uniform() * 0.1f;
      std::memcpy(&raw[at], &w, 4);
    } else if (format == Format::kBF16) {
      put(at, uint16_t(std::bit_cast<uint32_t>(random.uniform() * 0.1f) >> 16));
    } else if (loose) {
      put(at, float_to_half(random.uniform() * 0.1f));
    } else if (format == Format::kQ6_K) {
      put(at + 208, float_to_half(x * 0.01f));
    } else {
      put(at, float_to_half(x));
      if (format == Format::kQ4_1 || format == Format::kQ5_1 || format == Format::kQ4_K || format == Format::kQ5_K) put(at + 2, float_to_half(x * -3.f));
    }
  }
  return raw;
}

struct Setup {
  Activations input;
  std::vector<float> x;
  int64_t rows;
  Setup(int64_t rows_, int64_t k, uint64_t seed, unsigned more = 0) : input(rows_, k, kWant8 | kWant13 | kWantValues | more), x(size_t(rows_ * k)), rows(rows_) {
    test::Random random(seed);
    for (auto& v : x) v = random.gauss() * (random.below(50) ? 1.f : 8.f);
    for (int64_t r = 0; r < rows_; r++) kernels().quantize(&x[size_t(r * k)], k, input.row(r));
  }
};

std::vector<float> product(const Linear& linear, const Setup& s, int rows, int lanes, int64_t pad = 3) {
  ThreadPool pool(lanes);
  const int64_t stride = linear.columns() + pad;
  std::vector<float> out(size_t(rows * stride), 7.f);
  pool.run([&](Lane& lane) { linear.run(lane, s.input.view(), rows, out.data(), stride); });
  std::vector<float> tight;
  for (int r = 0; r < rows; r++) {
    for (int64_t i = linear.columns(); i < stride; i++) CHECK(out[size_t(r * stride + i)] == 7.f);  // nothing beyond the columns
    tight.insert(tight.end(), out.begin() + r * stride, out.begin() + r * stride + linear.columns());
  }
  return tight;
}

int code8(const ActivationView& v, const Codes8& codes, int64_t row, int64_t k) {
  const Group8& group = codes.groups[row * v.groups + k / kGroup];
  return 128 * (group.lead == k % kGroup ? group.high : 0) + group.codes[k % kGroup];
}

double scale8(const Codes8& codes, int64_t groups, int64_t row, int64_t group) {
  return double(codes.unit[row]) * codes.groups[row * groups + group].factor.number;
}

// What the kernel is asked to compute, in fp64: the quantised activations times the numbers that the file stands for.
double activation(const Setup& s, const Weight& w, int64_t row, int64_t k) {
  const ActivationView v = s.input.view();
  const int64_t at = row * v.padded_k + k, group = row * v.groups + k / kGroup;
  if (w.want() == kWant8) {
    const double first = scale8(v.first, v.groups, row, k / kGroup) * code8(v, v.first, row, k);
    return v.rest.groups == nullptr ? first : first + scale8(v.rest, v.groups, row, k / kGroup) * code8(v, v.rest, row, k);
  }
  if (w.want() == kWant13) return double(v.scale13[group]) * v.codes13[at];
  return v.values[at];
}

double relative_error(const Weight& w, const Setup& s, const std::vector<float>& out) {
  double error = 0, size = 0;
  std::vector<float> weights(size_t(w.k()));
  for (int64_t n = 0; n < w.rows(); n++) {
    w.read_row(n, weights.data());
    for (int64_t r = 0; r < s.rows; r++) {
      double y = 0;
      for (int64_t k = 0; k < w.k(); k++) y += activation(s, w, r, k) * weights[size_t(k)];
      const double e = out[size_t(r * w.rows() + n)] - y;
      error += e * e, size += y * y;
    }
  }
  return std::sqrt(error / size);
}

std::shared_ptr<Weight> random_weight(const char* name, int64_t rows, int64_t k, uint64_t seed) {
  test::Random random(seed);
  const Format format = format_named(name);
  const auto raw = random_raw(format, rows, k, random);
  ThreadPool pool(2);
  return Weight::pack(format, raw.data(), int64_t(raw.size()), rows, k, pool);
}

}  // namespace

TEST(linear_agrees_with_fp64) {
  for (const char* name : kAll)
    for (int64_t k : {256, 1536}) {
      const auto w = random_weight(name, 37, k, 11);
      const Setup s(13, k, 5);
      const double error = relative_error(*w, s, product(Linear({w}), s, 13, 1));
      if (error > 1e-6) std::printf("  %s k=%d: %g\n", name, int(k), error);
      CHECK(error < 1e-6);
    }
}

TEST(linear_is_bitwise_invariant_over_rows_threads_and_isa) {
  for (const char* name : kAll) {
    const int64_t k = 1024, n = 83;
    const auto w = random_weight(name, n, k, 3);
    const Linear linear({w});
    const Setup s(64, k, 9);
    const auto all = product(linear, s, 64, 1);
    for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33, 64})
      for (int lanes : {1, 2, 3}) CHECK(test::same_bits(product(linear, s, rows, lanes).data(), all.data(), size_t(rows * n)));
    for (const KernelTable* isa : supported_kernels()) {
      select_kernels(isa->name);
      const Setup again(64, k, 9);
      for (int rows : {3, 9}) CHECK(test::same_bits(product(linear, again, rows, 1).data(), all.data(), size_t(rows * n)));
      select_kernels("auto");
    }
  }
}

// 16 bits: the products are those of the numbers themselves, but for 2^-15 of the largest of each group.
TEST(linear_reads_the_rest_of_activations) {
  for (const char* name : {"q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k"}) {
    const int64_t k = 1024, n = 37;
    const auto w = random_weight(name, n, k, 3);
    const Linear linear({w});
    const Setup s(33, k, 9, kWantRest);
    const auto all = product(linear, s, 33, 1);
    CHECK(relative_error(*w, s, all) < 1e-6);
    std::vector<float> weights(static_cast<size_t>(k));
    double error = 0, size = 0;
    for (int64_t c = 0; c < n; c++) {
      w->read_row(c, weights.data());
      for (int64_t r = 0; r < s.rows; r++) {
        double y = 0;
        for (int64_t i = 0; i < k; i++) y += double(s.x[size_t(r * k + i)]) * weights[size_t(i)];
        error += std::pow(all[size_t(r * n + c)] - y, 2), size += y * y;
      }
    }
    CHECK(std::sqrt(error / size) < 1e-4);
    for (int rows : {1, 4, 7, 9, 33})
      for (int lanes : {1, 2}) CHECK(test::same_bits(product(linear, s, rows, lanes).data(), all.data(), size_t(rows * n)));
    for (const KernelTable* isa : supported_kernels()) {
      select_kernels(isa->name);
      CHECK(test::same_bits(product(linear, Setup(33, k, 9, kWantRest), 33, 1).data(), all.data(), all.size()));
      select_kernels("auto");
    }
  }
  CHECK_THROWS(Activations(1, 32, kWant13 | kWantRest));
}

TEST(linear_survives_many_rows_and_long_k) {
  for (const char* name : {"q4_1", "q6_k", "q8_0"}) {
    const auto w = random_weight(name, 20, 4864, 3);
    const Setup s(150, 4864, 9);
    const auto all = product(Linear({w}), s, 150, 2);
    CHECK(relative_error(*w, s, all) < 1e-6);
    CHECK(test::same_bits(product(Linear({w}), s, 8, 1).data(), all.data(), 160));
  }
}

TEST(linear_joins_weights_of_different_formats) {
  const auto a = random_weight("q5_0", 24, 512, 1), b = random_weight("q8_0", 8, 512, 2), c = random_weight("q6_k", 19, 512, 3);
  const Setup s(20, 512, 4);
  for (int lanes : {1, 2}) {
    const auto joined = product(Linear({a, b, c}), s, 20, lanes);
    int64_t offset = 0;
    for (const auto& w : {a, b, c}) {
      const auto alone = product(Linear({w}), s, 20, 1);
      for (int r = 0; r < 20; r++) CHECK(test::same_bits(&joined[size_t(r * 51 + offset)], &alone[size_t(r * w->rows())], size_t(w->rows())));
      offset += w->rows();
    }
  }
}

// Every code and every activation at its extreme: integer sums must stay exact.
TEST(linear_is_exact_at_extreme_codes) {
  for (const char* name : {"q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "q8_0"})
    for (int fill : {0x00, 0xff, 0x80}) {
      const Format format = format_named(name);
      std::vector<std::byte> raw(size_t(raw_bytes(format, 16, 256)), std::byte(fill));
      const int bytes = info(format).block_bytes, scale_at = format == Format::kQ6_K ? 208 : 0;
      const uint16_t one = float_to_half(1.f);
      for (size_t at = 0; at < raw.size(); at += size_t(bytes)) std::memcpy(&raw[at + size_t(scale_at)], &one, 2);
      if (info(format).layout == Layout::kU4Min || info(format).layout == Layout::kU5Min || info(format).layout == Layout::kU4Super || info(format).layout == Layout::kU5Super)
        for (size_t at = 0; at < raw.size(); at += size_t(bytes)) std::memcpy(&raw[at + 2], &one, 2);
      ThreadPool pool(1);
      const auto w = Weight::pack(format, raw.data(), int64_t(raw.size()), 16, 256, pool);
      for (int sign : {1, -1}) {
        Setup s(9, 256, 1);
        for (size_t i = 0; i < s.x.size(); i++) s.x[i] = float(sign) * (i % 32 == i / 32 % 32 ? 128.f : 1.f);  // the lead at every place
        for (int r = 0; r < 9; r++) kernels().quantize(&s.x[size_t(r * 256)], 256, s.input.row(r));
        const double error = [&] { return relative_error(*w, s, product(Linear({w}), s, 9, 1)); }();
        CHECK(!(error > 1e-6));
      }
    }
}

namespace {

struct Exact {  // a format whose blocks have a scale of 1 here: w = scale * (code - offset) + min
  const char* name;
  int offset, halves;  // as linear_codes.h has them
  float scale[2], min;
};
const Exact kExact[] = {{"q4_0", 8, 1, {1, 1}, 0}, {"q4_1", 0, 1, {1, 1}, 1}, {"q4_k", 0, 1, {63, 63}, -63}, {"q5_0", 16, 1, {1, 1}, 0},
                        {"q5_1", 16, 1, {1, 1}, 1 + 16}, {"q5_k", 16, 1, {63, 63}, -63 + 16 * 63}, {"q6_k", 32, 2, {127, -128}, 0}};

// Every byte of the codes is what `byte` gives; scales and minima are the largest that a block holds.
template <class Byte>
std::shared_ptr<Weight> exact_weight(Format format, int64_t rows, int64_t k, Byte byte) {
  std::vector<std::byte> raw(size_t(raw_bytes(format, rows, k)));
  for (auto& b : raw) b = std::byte(byte());
  const uint16_t one = float_to_half(1.f);
  const bool super = info(format).block_weights == 256, min = format != Format::kQ4_0 && format != Format::kQ5_0;
  for (size_t at = 0; at < raw.size(); at += size_t(info(format).block_bytes)) {
    if (format == Format::kQ6_K) {
      std::memcpy(&raw[at + 208], &one, 2);
      for (size_t i = 0; i < 16; i++) raw[at + 192 + i] = std::byte(i % 2 ? -128 : 127);
      continue;
    }
    std::memcpy(&raw[at], &one, 2);
    if (min) std::memcpy(&raw[at + 2], &one, 2);
    if (super) std::memset(&raw[at + 4], 0xff, 12);
  }
  ThreadPool pool(1);
  return Weight::pack(format, raw.data(), int64_t(raw.size()), rows, k, pool);
}

// Rows of numbers that give codes at their ends: +-127 everywhere, and leads whose lower digits are 0, 63 and -64.
std::vector<float> extreme_rows(int64_t rows, int64_t k) {
  test::Random random(7);
  std::vector<float> x(static_cast<size_t>(rows * k));
  const float leads[] = {0, 128, 16191 / 127.f, 16192 / 127.f, -16191 / 127.f, -16192 / 127.f};
  for (int64_t i = 0; i < rows * k; i++) {
    const int64_t row = i / k, group = i % k / 32;
    const float lead = leads[row % 6], some = row % 3 == 0 ? 1.f : row % 3 == 1 ? -1.f : random.below(2) ? 1.f : -1.f;
    const float size = row < 6 ? 1.f : std::exp2(-float(group * 7 % 20));  // factors from the largest down to 1
    x[size_t(i)] = size * (lead != 0 && i % 32 == (group * 5 + row) % 32 ? lead : row < 9 ? some : random.uniform());
  }
  return x;
}

// What linear_codes.cpp promises, in whole numbers up to each rounding.
float promised(const Exact& exact, const Codes8& codes, int64_t groups, const std::vector<float>& weights) {
  float acc = 0;
  for (int64_t g = 0; g < groups; g++) {
    const Group8& a = codes.groups[g];
    if (exact.min != 0) acc = std::fma(exact.min, a.sum, acc);
    for (int half = 0; half < exact.halves; half++) {
      const float scale = exact.scale[half];
      int64_t total = 0, lead = 0;
      for (int i = half * 32 / exact.halves; i < (half + 1) * 32 / exact.halves; i++) {
        const int64_t code = int64_t((weights[size_t(g * 32 + i)] - exact.min) / scale);  // the offset taken off
        total += code * a.codes[i];
        if (i == a.lead) lead = code * a.high;
      }
      acc = std::fma(float(total * int64_t(a.factor.number)), scale, acc);
      acc = std::fma(float(lead * int64_t(a.factor.number)), 128 * scale, acc);
    }
  }
  return acc * *codes.unit;
}

}  // namespace

TEST(linear_is_the_promised_chain_to_the_bit_at_extreme_codes) {
  const int64_t rows = 18, k = 1024, n = 20;
  const auto x = extreme_rows(rows, k);
  for (const Exact& exact : kExact)
    for (int fill = 0; fill < 4; fill++) {
      test::Random random(3);
      const auto w = exact_weight(format_named(exact.name), n, k, [&] {
        return fill == 0 ? 0u : fill == 1 ? 255u : fill == 2 ? (random.below(2) ? 255u : 0u) : random.bits() & 255u;
      });
      std::vector<std::vector<float>> weights(static_cast<size_t>(n), std::vector<float>(static_cast<size_t>(k)));
      for (int64_t c = 0; c < n; c++) w->read_row(c, weights[size_t(c)].data());
      for (const KernelTable* isa : supported_kernels()) {
        select_kernels(isa->name);
        Setup s(rows, k, 1);
        for (int r = 0; r < rows; r++) kernels().quantize(&x[size_t(r * k)], k, s.input.row(r));
        const auto many = product(Linear({w}), s, int(rows), 1), few = product(Linear({w}), s, 8, 1);
        select_kernels("auto");
        CHECK(test::same_bits(few.data(), many.data(), few.size()));
        int most = 0, least_lead = 0, most_lead = 0, highest = 0;
        const ActivationView v = s.input.view();
        for (int64_t g = 0; g < rows * v.groups; g++) {
          const Group8& a = v.first.groups[g];
          for (int8_t code : a.codes) most = std::max(most, std::abs(int(code)));
          highest = std::max(highest, int(a.factor.twice[0]));
          if (a.high != 0) least_lead = std::min(least_lead, int(a.codes[a.lead])), most_lead = std::max(most_lead, int(a.codes[a.lead]));
        }
        CHECK(most == 127 && highest == kLargestFactor && least_lead == -64 && most_lead == 63);
        for (int64_t r = 0; r < rows; r++) {
          const Codes8 row{v.first.groups + r * v.groups, nullptr, v.first.unit + r};
          for (int64_t c = 0; c < n; c++) CHECK(many[size_t(r * n + c)] == promised(exact, row, v.groups, weights[size_t(c)]));
        }
      }
    }
}

TEST(what_is_no_number_reaches_all_outputs_of_its_row_and_of_no_other) {
  const int64_t rows = 13, k = 512, n = 20;
  const float infinite = std::numeric_limits<float>::infinity();
  for (const Exact& exact : kExact)
    for (unsigned more : {0u, unsigned(kWantRest)}) {
      const auto w = exact_weight(format_named(exact.name), n, k, [] { return 0u; });
      for (const KernelTable* isa : supported_kernels()) {
        select_kernels(isa->name);
        Setup s(rows, k, 1, more);
        const auto before = product(Linear({w}), s, int(rows), 1);
        for (int row : {2, 7, 11, 12}) {
          float* x = &s.x[size_t(row * k)];
          if (row == 2) x[77] = std::numeric_limits<float>::quiet_NaN();
          else if (row == 7) x[500] = -infinite;
          else for (int i = 0; i < 32; i++) x[64 + i] = row == 11 || i % 2 ? infinite : -infinite;
          kernels().quantize(x, k, s.input.row(row));
        }
        const auto many = product(Linear({w}), s, int(rows), 1), few = product(Linear({w}), s, 8, 1);
        select_kernels("auto");
        for (int64_t i = 0; i < rows * n; i++) {
          const bool broken = i / n == 2 || i / n == 7 || i / n >= 11;
          CHECK(broken ? std::isnan(many[size_t(i)]) : test::same_bits(&many[size_t(i)], &before[size_t(i)], 1));
          if (i < 8 * n) CHECK(broken ? std::isnan(few[size_t(i)]) : test::same_bits(&few[size_t(i)], &before[size_t(i)], 1));
        }
      }
    }
}

TEST(rows_of_any_size_are_multiplied) {
  const int64_t k = 64;
  const auto w = exact_weight(Format::kQ4_0, 1, k, [] { return 255u; });  // all 7
  for (unsigned more : {0u, unsigned(kWantRest)})
    for (const KernelTable* isa : supported_kernels()) {
      select_kernels(isa->name);
      Setup s(1, k, 1, more);
      for (float size = 1e36f; size > 1e-44f; size *= 0.85f)
        for (float others : {0.f, 1e-3f, 0.9f}) {
          for (int64_t i = 0; i < k; i++) s.x[size_t(i)] = size * (i == 5 ? 1.f : i < 32 ? others * 0.37f : others * 1e-3f);
          kernels().quantize(s.x.data(), k, s.input.row(0));
          double want = 0;
          for (float x : s.x) want += 7 * double(x);
          const double error = std::fabs(product(Linear({w}), s, 1, 1)[0] - want);
          CHECK(error <= std::fabs(want) * (more ? 1e-4 : 2e-2) + 1e-25);  // groups below 1e-28 are zero
        }
      select_kernels("auto");
    }
}

TEST(quantised_rows_keep_the_error_bound_and_spread_nan) {
  test::Random random(1);
  const int64_t k = 100;  // not a multiple of the group
  std::vector<float> x(size_t(k), 0.f);
  for (auto& v : x) v = random.gauss();
  Activations a(2, k, kWant8 | kWant13 | kWantValues);
  kernels().quantize(x.data(), k, a.row(0));
  const ActivationView v = a.view();
  CHECK(v.padded_k == 128 && v.groups == 4);
  for (int64_t i = 0; i < 128; i++) {
    const float want = i < k ? x[size_t(i)] : 0.f;
    CHECK(v.values[i] == want);
    const double scale = scale8(v.first, 4, 0, i / 32);
    CHECK(std::fabs(scale * code8(v, v.first, 0, i) - want) <= scale * 0.501);
    CHECK(std::fabs(v.scale13[i / 32] * v.codes13[i] - want) <= v.scale13[i / 32] * 0.501f);
  }
  for (int g = 0; g < 4; g++) {
    int sum = 0;
    for (int i = 0; i < 32; i++) sum += code8(v, v.first, 0, g * 32 + i);
    CHECK(v.first.groups[g].sum == v.first.groups[g].factor.number * float(sum));
  }
  x[40] = std::numeric_limits<float>::quiet_NaN();
  x[0] = 1e-38f, x[99] = std::numeric_limits<float>::infinity();
  kernels().quantize(x.data(), k, a.row(1));
  CHECK(std::isnan(v.first.unit[1]) && std::isnan(v.scale13[4 + 1]) && std::isinf(v.scale13[4 + 3]) && !std::isnan(v.scale13[4 + 2]));
  x[40] = 1;
  kernels().quantize(x.data(), k, a.row(1));
  CHECK(std::isnan(v.first.unit[1]));  // of an infinity too
}

TEST(weights_of_the_wrong_size_are_refused) {
  ThreadPool pool(1);
  std::vector<std::byte> raw(1000);
  CHECK_THROWS(format_named("q3_k"));
  CHECK_THROWS(raw_bytes(Format::kQ4_0, 4, 33));
  CHECK_THROWS(raw_bytes(Format::kQ4_K, 4, 128));
  CHECK_THROWS(raw_bytes(Format::kF32, -1, 8));
  CHECK_THROWS(raw_bytes(Format::kF32, int64_t(1) << 30, int64_t(1) << 30));
  CHECK_THROWS(Weight::pack(Format::kQ4_0, raw.data(), 35, 1, 64, pool));
  CHECK_THROWS(Weight::pack(Format::kQ4_0, raw.data(), 37, 1, 64, pool));
  const auto w = Weight::pack(Format::kQ4_0, raw.data(), 36, 1, 64, pool);
  std::vector<float> row(64);
  CHECK_THROWS(w->read_row(1, row.data()));
  CHECK_THROWS(Linear({}));
  CHECK_THROWS(Linear({w, random_weight("q4_0", 16, 96, 1)}));
}

TEST(weights_quantised_at_load_may_have_any_width) {
  for (const char* name : {"q8_0", "q4_1"})
    for (int64_t k : {1, 31, 100, 256}) {
      const int64_t n = 19;
      test::Random random(static_cast<uint64_t>(k));
      std::vector<float> values(static_cast<size_t>(n * k)), row(static_cast<size_t>(k));
      for (auto& v : values) v = random.gauss();
      ThreadPool pool(2);
      const auto w = Weight::quantise(format_named(name), values.data(), n, k, pool);
      CHECK(w->rows() == n && w->k() == k);
      for (int64_t r = 0; r < n; r++) {
        w->read_row(r, row.data());
        for (size_t i = 0; i < size_t(k); i++) CHECK(std::fabs(row[i] - values[size_t(r * k) + i]) < (w->want() == kWant13 ? 0.02f : 0.25f));
      }
      const Setup s(11, k, 2);
      CHECK(relative_error(*w, s, product(Linear({w}), s, 11, 2)) < 1e-6);
    }
  ThreadPool pool(1);
  const float x = 1;
  CHECK_THROWS(Weight::quantise(Format::kQ6_K, &x, 1, 1, pool));
  CHECK_THROWS(Weight::quantise(Format::kQ8_0, &x, 0, 1, pool));
}

TEST(packed_bytes_make_the_same_weight_and_other_sizes_are_refused) {
  ThreadPool pool(2);
  for (const char* name : kAll) {
    const Format format = format_named(name);
    const auto w = random_weight(name, 37, 512, 8);
    const int64_t size = int64_t(w->size_bytes());
    const auto copy = Weight::from_packed(format, w->data(), size, 37, 512, pool);
    CHECK(copy->rows() == 37 && copy->k() == 512 && std::memcmp(copy->data(), w->data(), size_t(size)) == 0);
    for (int64_t wrong : {int64_t(0), size - 1, size + 1, -size}) CHECK_THROWS(Weight::from_packed(format, w->data(), wrong, 37, 512, pool));
    for (int64_t rows : {int64_t(0), int64_t(-37), int64_t(49), int64_t(1) << 40}) CHECK_THROWS(Weight::from_packed(format, w->data(), size, rows, 512, pool));
    for (int64_t k : {int64_t(0), int64_t(-512), int64_t(1024), int64_t(1) << 62}) CHECK_THROWS(Weight::from_packed(format, w->data(), size, 37, k, pool));
  }
  const std::vector<float> values(5 * 70, 0.5f);
  const auto w = Weight::quantise(Format::kQ8_0, values.data(), 5, 70, pool);
  const auto copy = Weight::from_packed(Format::kQ8_0, w->data(), int64_t(w->size_bytes()), 5, 70, pool);
  std::vector<float> row(70), same(70);
  w->read_row(4, row.data()), copy->read_row(4, same.data());
  CHECK(row == same);
}
