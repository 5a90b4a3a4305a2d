// Owns: what happens to one head of one row between its projection and attention: bias, RMSNorm, rotation (RoPE), and the
// store into the KV pool.
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

// page: K [head_dim][16], token in 0..15
void store_key(KvType type, const float* x, int head_dim, std::byte* page, int token) {
  if (type == KvType::kF32) {
    float* k = reinterpret_cast<float*>(page) + token;
    for (int d = 0; d < head_dim; d++) k[d * kPageTokens] = x[d];
    return;
  }
  uint16_t* k = reinterpret_cast<uint16_t*>(page) + token;
  int d = 0;
  for (; d + 8 <= head_dim; d += 8) {
    uint16_t halves[8];
    store_half(halves, load(x + d));
    for (int j = 0; j < 8; j++) k[(d + j) * kPageTokens] = halves[j];
  }
  for (; d < head_dim; d++) k[d * kPageTokens] = float_to_half(x[d]);
}

// row: one token of V, [padded_dim]
void store_value(KvType type, const float* x, int head_dim, std::byte* row) {
  if (type == KvType::kF32) {
    std::memcpy(row, x, size_t(head_dim) * sizeof(float));
    return;
  }
  uint16_t* v = reinterpret_cast<uint16_t*>(row);
  int d = 0;
  for (; d + 8 <= head_dim; d += 8) store_half(v + d, load(x + d));
  for (; d < head_dim; d++) v[d] = float_to_half(x[d]);
}

}  // namespace

void fill_head_kernels(KernelTable& table) {
  table.prepare_head = prepare_head;
  table.store_key = store_key;
  table.store_value = store_value;
}

}  // namespace sapwood::SAPWOOD_ISA
