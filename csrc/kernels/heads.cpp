// Owns: what happens to one head of one row between its projection and attention: bias, RMSNorm, rotation (RoPE).
//
//   rotation, half-split:   x[i]           <- x[i] cos_i - x[i + r/2] sin_i          i in [0, r/2), r = rotary_dim
//                           x[i + r/2]     <- x[i + r/2] cos_i + x[i] sin_i
//
// Invariant: a head depends on its own numbers and its position only.
#include "kernels/tables.h"
#include "simd/vmath.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

void normalise(float* x, const float* weight, int n, float epsilon) {
  F sums = zero();
  int i = 0;
  for (; i + 8 <= n; i += 8) sums = fma(load(x + i), load(x + i), sums);
  float total = sum_of(sums);
  for (; i < n; i++) total += x[i] * x[i];
  const float r = 1.f / std::sqrt(total / float(n) + epsilon);
  for (i = 0; i + 8 <= n; i += 8) store(x + i, mul(mul(load(x + i), all(r)), load(weight + i)));
  for (; i < n; i++) x[i] = x[i] * r * weight[i];
}

void rotate(float* x, const float* cosine, const float* sine, int half) {
  int i = 0;
  for (; i + 8 <= half; i += 8) {
    const F a = load(x + i), b = load(x + half + i), c = load(cosine + i), s = load(sine + i);
    store(x + i, fnma(b, s, mul(a, c)));
    store(x + half + i, fma(a, s, mul(b, c)));
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    x[i] = std::fma(-b, sine[i], a * cosine[i]);
    x[half + i] = std::fma(a, sine[i], b * cosine[i]);
  }
}

void prepare_head(const HeadArgs& h) {
  if (h.bias != nullptr) {
    int i = 0;
    for (; i + 8 <= h.head_dim; i += 8) store(h.x + i, add(load(h.x + i), load(h.bias + i)));
    for (; i < h.head_dim; i++) h.x[i] += h.bias[i];
  }
  if (h.norm != nullptr) normalise(h.x, h.norm, h.head_dim, h.epsilon);
  if (h.cosine != nullptr) rotate(h.x, h.cosine, h.sine, h.rotary_dim / 2);
}

}  // namespace

void fill_head_kernels(KernelTable& table) {
  table.prepare_head = prepare_head;
}

}  // namespace sapwood::SAPWOOD_ISA
