// Owns: what happens to rows of logits: soft cap, the largest, and the weights of sampling (sampling/choose.h). Invariant: a row's result depends on nothing but the row.
#include <limits>

#include "kernels/tables.h"
#include "simd/vmath.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

void soft_cap(float* x, int64_t n, float cap) {
  const auto capped = [&](F v) { return mul(all(cap), tanh(div(v, all(cap)))); };
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store(x + i, capped(load(x + i)));
  for (; i < n; i++) {
    float lanes8[8];
    store(lanes8, capped(all(x[i])));
    x[i] = lanes8[0];
  }
}

float largest(const float* x, int64_t n) {
  F m[4];
  for (auto& v : m) v = all(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int j = 0; j < 4; j++) m[j] = max(load(x + i + 8 * j), m[j]);  // a NaN in x leaves m as it is
  float top = max_of(max(max(m[0], m[1]), max(m[2], m[3])));
  for (; i < n; i++)
    if (x[i] > top) top = x[i];
  return top;
}

// 8 numbers from x[i..n), -inf beyond the end.
SAPWOOD_INLINE F load_padded(const float* x, int64_t i, int64_t n) {
  if (i + 8 <= n) return load(x + i);
  float padded[8];
  for (int j = 0; j < 8; j++) padded[j] = i + j < n ? x[i + j] : -std::numeric_limits<float>::infinity();
  return load(padded);
}

struct Weigher {
  float highest, temperature;
  SAPWOOD_INLINE F operator()(F x) const { return exp(div(sub(x, all(highest)), all(temperature))); }
};

// round(w * 2^44) in two 22-bit halves, so that 256 of each can be added in 32 bits.
uint64_t mass(const float* x, int64_t n, float highest, float temperature, float lightest) {
  const Weigher weigher{highest, temperature};
  int64_t total = 0;
  for (int64_t begin = 0; begin < n; begin += 256) {
    I high = zero_int(), low = zero_int();
    for (int64_t i = begin; i < n && i < begin + 256; i += 8) {
      const F w = weigher(load_padded(x, i, n));
      const F scaled = mul(zero_below(w, w, all(lightest)), all(0x1p22f)), whole = nearest(scaled);
      high = add32(high, to_int(whole));
      low = add32(low, to_int(mul(sub(scaled, whole), all(0x1p22f))));
    }
    total += (int64_t(sum_of_int(high)) << 22) + sum_of_int(low);
  }
  return uint64_t(total);
}

void weights(const float* x, int64_t n, float highest, float temperature, float* out) {
  const Weigher weigher{highest, temperature};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store(out + i, weigher(load(x + i)));
  if (i == n) return;
  float last[8];
  store(last, weigher(load_padded(x, i, n)));
  std::memcpy(out + i, last, size_t(n - i) * sizeof(float));
}

}  // namespace

void fill_logit_kernels(KernelTable& table) {
  table.soft_cap = soft_cap;
  table.largest = largest;
  table.mass = mass;
  table.weights = weights;
}

}  // namespace sapwood::SAPWOOD_ISA
