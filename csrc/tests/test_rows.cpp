// Row kernels against fp64: norm, gated activations, exp, rotation, KV store and copy; the same bits on every instruction set.
#include <iterator>
#include <limits>

#include "attention/kv_pool.h"
#include "core/error.h"
#include "core/half.h"
#include "linear/activations.h"
#include "tests/check.h"

using namespace sapwood;

namespace {

std::vector<float> numbers(int64_t n, uint64_t seed, float scale = 1) {
  test::Random random(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (auto& v : x) v = random.gauss() * scale;
  return x;
}

bool close(float a, double b, double tolerance) { return std::fabs(a - b) <= tolerance * (1 + std::fabs(b)); }

template <class Run>
void on_every_isa(Run run) {
  for (const KernelTable* isa : supported_kernels()) {
    select_kernels(isa->name);
    run();
    select_kernels("auto");
  }
}

}  // namespace

TEST(rms_norm_agrees_with_fp64_at_any_width) {
  for (int64_t k : {1, 7, 32, 100, 576}) {
    const auto x = numbers(k, 1, 3), w = numbers(k, 2);
    double squares = 0;
    for (float v : x) squares += double(v) * v;
    std::vector<float> first;
    on_every_isa([&] {
      Activations a(1, k, kWantValues | kWant8);
      kernels().rms_norm(x.data(), w.data(), k, 1e-5f, a.row(0));
      const float* y = a.view().values;
      for (int64_t i = 0; i < a.padded_k(); i++)
        CHECK(i >= k ? y[i] == 0.f : close(y[i], x[size_t(i)] / std::sqrt(squares / double(k) + 1e-5) * w[size_t(i)], 1e-6));
      if (first.empty()) first.assign(y, y + k);
      CHECK(test::same_bits(first.data(), y, size_t(k)));
    });
  }
}

TEST(gates_agree_with_fp64_also_far_out) {
  const int64_t k = 77;
  auto gate = numbers(k, 3, 4);
  const auto up = numbers(k, 4);
  gate[0] = 0, gate[1] = 200, gate[2] = -200, gate[3] = 1e-6f, gate[4] = -90;
  on_every_isa([&] {
    Activations a(2, k, kWantValues);
    kernels().silu_gate(gate.data(), up.data(), k, a.row(0));
    kernels().gelu_gate(gate.data(), up.data(), k, a.row(1));
    for (int64_t i = 0; i < k; i++) {
      const double g = gate[size_t(i)], u = up[size_t(i)];
      CHECK(close(a.view().values[i], g / (1 + std::exp(-g)) * u, 2e-6));
      CHECK(close(a.view().values[a.padded_k() + i], 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u, 2e-6));
    }
  });
}

TEST(kernels_are_chosen_by_name) {
  CHECK(std::string(supported_kernels().back()->name) == "portable");
  on_every_isa([chosen = supported_kernels().begin()]() mutable { CHECK(&kernels() == *chosen++); });
  CHECK(&kernels() == supported_kernels().front());
  CHECK_THROWS((select_kernels("mmx"), 0));
}

// Quantised rows as numbers, NaN as one number of its own: its sign and payload are the processor's affair.
std::vector<double> forms(const ActivationView& v, int64_t rows) {
  std::vector<double> all;
  const auto take = [&](double x) { all.push_back(std::isnan(x) ? 1e300 : x); };
  for (int64_t i = 0; i < rows * v.padded_k; i++) take(v.codes13[i]), take(double(v.values[i]));
  for (int64_t g = 0; g < rows * v.groups; g++) {
    take(v.scale13[g]);
    for (const Codes8& codes : {v.first, v.rest}) {
      const Group8& group = codes.groups[g];
      for (int8_t x : group.codes) take(x);
      for (float x : {group.factor.number, float(group.factor.twice[0]), group.sum, float(group.high), float(group.lead)}) take(double(x));
    }
  }
  for (int64_t r = 0; r < rows; r++) take(v.first.unit[r]), take(v.rest.unit[r]);
  for (int64_t i = 0; i < rows * v.led_words; i++) take(double(v.first.led[i])), take(double(v.rest.led[i]));
  return all;
}

TEST(rows_are_the_same_on_every_isa_whatever_is_in_them) {
  const int64_t k = 300;
  const float infinite = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float odd[] = {nan, infinite, -infinite, 3e38f, -3e38f, 1e-38f, 1e-44f, 0.f, -0.f, 88.5f, -87.5f, 1e30f};
  auto x = numbers(k, 11, 5);
  const auto up = numbers(k, 12);
  for (size_t i = 0; i < std::size(odd); i++) x[i * 23] = odd[i], x[i * 7] = odd[i];
  std::vector<double> first;
  on_every_isa([&] {
    Activations a(3, k, kWant8 | kWantRest | kWant13 | kWantValues);
    kernels().quantize(x.data(), k, a.row(0));
    kernels().silu_gate(x.data(), up.data(), k, a.row(1));
    kernels().gelu_gate(x.data(), up.data(), k, a.row(2));
    const auto found = forms(a.view(), 3);
    if (first.empty()) first = found;
    CHECK(found == first);
  });
}

TEST(residual_additions) {
  for (int64_t k : {5, 64, 131}) {
    const auto x = numbers(k, 5), d = numbers(k, 6), w = numbers(k, 7);
    on_every_isa([&] {
      auto r = x, s = x;
      kernels().add_rows(r.data(), d.data(), k);
      kernels().add_normed(s.data(), d.data(), w.data(), k, 1e-6f);
      double squares = 0;
      for (float v : d) squares += double(v) * v;
      for (size_t i = 0; i < size_t(k); i++) {
        CHECK(r[i] == x[i] + d[i]);
        CHECK(close(s[i], x[i] + d[i] / std::sqrt(squares / double(k) + 1e-6) * w[i], 1e-6));
      }
    });
  }
}

TEST(heads_are_biased_normed_and_rotated) {
  for (int head_dim : {6, 64, 80})
    for (int rotary : {head_dim, head_dim / 2 / 2 * 2}) {
      const auto x = numbers(head_dim, 8), bias = numbers(head_dim, 9), norm = numbers(head_dim, 10);
      std::vector<float> cosine(size_t(rotary / 2)), sine(size_t(rotary / 2));
      for (int i = 0; i < rotary / 2; i++) cosine[size_t(i)] = std::cos(0.3f * float(i)), sine[size_t(i)] = std::sin(0.3f * float(i));
      std::vector<double> want(static_cast<size_t>(head_dim));
      double squares = 0;
      for (size_t i = 0; i < want.size(); i++) want[i] = double(x[i]) + bias[i], squares += want[i] * want[i];
      for (size_t i = 0; i < want.size(); i++) want[i] *= norm[i] / std::sqrt(squares / head_dim + 1e-6);
      for (size_t i = 0; i < size_t(rotary / 2); i++) {
        const double a = want[i], b = want[i + size_t(rotary / 2)];
        want[i] = a * cosine[i] - b * sine[i], want[i + size_t(rotary / 2)] = b * cosine[i] + a * sine[i];
      }
      on_every_isa([&] {
        auto y = x;
        kernels().prepare_head({y.data(), bias.data(), norm.data(), 1e-6f, cosine.data(), sine.data(), head_dim, rotary});
        for (size_t i = 0; i < want.size(); i++) CHECK(close(y[i], want[i], 2e-6));
      });
    }
}

TEST(kv_store_load_and_copy) {
  for (KvType type : {KvType::kF16, KvType::kF32})
    for (int head_dim : {5, 64, 72}) {
      const KvPool pool({2, 3, head_dim, type}, 4);
      const auto key = numbers(head_dim, 11), value = numbers(head_dim, 12);
      on_every_isa([&] {
        for (int location : {0, 15, 16, 63}) pool.store(1, location, 2, key.data(), value.data());
      });
      pool.store(0, 7, 1, key.data(), value.data());
      const int32_t from[] = {63, 7}, to[] = {33, 34};
      pool.copy_tokens(0, from, to, 2);
      std::vector<float> k(static_cast<size_t>(head_dim)), v(static_cast<size_t>(head_dim));
      const auto same = [&] {
        for (size_t i = 0; i < k.size(); i++) {
          const float wk = type == KvType::kF32 ? key[i] : half_to_float(float_to_half(key[i]));
          const float wv = type == KvType::kF32 ? value[i] : half_to_float(float_to_half(value[i]));
          if (k[i] != wk || v[i] != wv) return false;
        }
        return true;
      };
      for (int location : {0, 15, 16, 63, 33}) {
        pool.load(1, location, 2, k.data(), v.data());
        CHECK(same());
      }
      pool.load(0, 34, 1, k.data(), v.data());
      CHECK(same());
      pool.load(1, 1, 2, k.data(), v.data());
      for (float z : k) CHECK(z == 0);
    }
  const KvPool pool({1, 1, 8, KvType::kF16}, 2);
  const int32_t inside = 3, outside = 32, negative = -1;
  CHECK_THROWS((pool.copy_tokens(0, &inside, &outside, 1), 0));
  CHECK_THROWS((pool.copy_tokens(0, &negative, &inside, 1), 0));
  CHECK_THROWS(KvPool({1, 1, 8, KvType::kF16}, 0));
}
