// Owns: how a token's key and value enter a page of one kv head (layout: kernels/attend.h), rounded to the page's type.
//
//   8 bits, per group of 32 dimensions:   scale = half(largest magnitude / 127),   code = nearest(x / scale) within +-127
//
// Invariant: what is stored depends on the token's own numbers only. A NaN makes its group's scale NaN, and so is not lost.
#include "kernels/tables.h"
#include "simd/simd.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

struct Rounded {  // one group
  uint16_t scale;
  int8_t codes[kScaleDims];
};

Rounded round_group(const float* x, int count) {
  float padded[kScaleDims] = {}, codes[kScaleDims];
  std::memcpy(padded, x, size_t(count) * sizeof(float));
  F largest = zero();
  for (int d = 0; d < kScaleDims; d += 8) largest = max_magnitude(largest, abs(load(padded + d)));
  Rounded out;
  out.scale = float_to_half(largest_magnitude(largest) / 127.f);
  const float scale = half_to_float(out.scale);
  const F inverse = all(scale > 0 ? 1.f / scale : 0.f);
  for (int d = 0; d < kScaleDims; d += 8)  // min and max turn NaN into a bound, so the conversion below is defined
    store(codes + d, nearest(max(min(mul(load(padded + d), inverse), all(127.f)), all(-127.f))));
  for (int d = 0; d < kScaleDims; d++) out.codes[d] = int8_t(codes[d]);
  return out;
}

void store_codes(const StoreArgs& s) {
  const int groups = scale_groups(s.head_dim);
  auto* keys = reinterpret_cast<int8_t*>(s.page);
  auto* values = keys + s.head_dim * kPageTokens;
  auto* key_scales = reinterpret_cast<uint16_t*>(values + s.padded_dim * kPageTokens);
  auto* value_scales = key_scales + groups * kPageTokens;
  for (int g = 0; g < groups; g++) {
    const int first = g * kScaleDims, count = s.head_dim - first < kScaleDims ? s.head_dim - first : kScaleDims;
    const Rounded key = round_group(s.key + first, count), value = round_group(s.value + first, count);
    for (int d = 0; d < count; d++) keys[(first + d) * kPageTokens + s.token] = key.codes[d];
    std::memcpy(values + s.token * s.padded_dim + first, value.codes, size_t(count));
    key_scales[g * kPageTokens + s.token] = key.scale;
    value_scales[s.token * groups + g] = value.scale;
  }
}

void store_floats(const StoreArgs& s) {
  float* keys = reinterpret_cast<float*>(s.page);
  for (int d = 0; d < s.head_dim; d++) keys[d * kPageTokens + s.token] = s.key[d];
  std::memcpy(keys + s.head_dim * kPageTokens + s.token * s.padded_dim, s.value, size_t(s.head_dim) * sizeof(float));
}

void store_halves(const StoreArgs& s) {
  uint16_t* keys = reinterpret_cast<uint16_t*>(s.page) + s.token;
  uint16_t* values = reinterpret_cast<uint16_t*>(s.page) + s.head_dim * kPageTokens + s.token * s.padded_dim;
  int d = 0;
  for (; d + 8 <= s.head_dim; d += 8) {
    uint16_t halves[8];
    store_half(halves, load(s.key + d));
    for (int j = 0; j < 8; j++) keys[(d + j) * kPageTokens] = halves[j];
    store_half(values + d, load(s.value + d));
  }
  for (; d < s.head_dim; d++) keys[d * kPageTokens] = float_to_half(s.key[d]), values[d] = float_to_half(s.value[d]);
}

void store_token(const StoreArgs& s) {
  if (s.type == KvType::kI8) store_codes(s);
  else if (s.type == KvType::kF16) store_halves(s);
  else store_floats(s);
}

}  // namespace

void fill_store_kernels(KernelTable& table) { table.store_token = store_token; }

}  // namespace sapwood::SAPWOOD_ISA
