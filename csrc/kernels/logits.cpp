// Owns: what happens to rows of logits: soft cap and argmax. Invariant: a row's result depends on nothing but the row.
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

// The largest value first, then the first place that holds it: two streaming passes, no index vectors.
int64_t argmax(const float* x, int64_t n) {
  F m[4];
  for (auto& v : m) v = all(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int j = 0; j < 4; j++) m[j] = max(load(x + i + 8 * j), m[j]);  // a NaN in x leaves m as it is
  float largest = max_of(max(max(m[0], m[1]), max(m[2], m[3])));
  for (; i < n; i++)
    if (x[i] > largest) largest = x[i];
  for (i = 0; i < n; i++)
    if (x[i] == largest) return i;
  return 0;
}

}  // namespace

void fill_logit_kernels(KernelTable& table) {
  table.soft_cap = soft_cap;
  table.argmax = argmax;
}

}  // namespace sapwood::SAPWOOD_ISA
