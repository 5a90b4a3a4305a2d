// Owns: what happens to one row between two linears: RMSNorm, the gated activations, and their quantisation in the same pass.
// Invariant: a row depends on nothing but itself; sums run over fixed vector lanes in ascending order.
//
// Quantisation of a group of 32 to 13 bits: scale = largest magnitude / 4095, code = nearest(x / scale).
// To 8 bits: the same with 127; but a number more than 2.5 times as large as all others of its group would leave few codes to
// them. It becomes the group's lead, with a second digit that reaches 128 times as far as theirs:
//   scale = max(second largest, largest / 128) / 127;  lead = nearest(x / scale) = 128 * high + low, low in -64..63
// Where the rest is wanted, what these codes leave of each number (at most half a scale) is quantised in the same way once more:
// together they hold 15 bits and a sign.
// A NaN makes its group's scale NaN, so it reaches every output instead of becoming a number.
#include <bit>

#include "kernels/tables.h"
#include "simd/vmath.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

constexpr float kSmallest = 1e-30f;  // smaller groups are zero: their reciprocal would overflow
constexpr float kLeadShare = 1 / 2.5f, kLeadReach = 128.f;  // the lead is alone above this share of itself

// A source computes 8 numbers of a row from `kInputs` input rows. The last, partial group is read through zero-filled copies.
struct Plain {
  static constexpr int kInputs = 1;
  SAPWOOD_INLINE F at(const float* const* in, int64_t i) const { return load(in[0] + i); }
};
struct Normed {  // x * (1 / rms) * weight
  static constexpr int kInputs = 2;
  float inverse_rms;
  SAPWOOD_INLINE F at(const float* const* in, int64_t i) const { return mul(mul(load(in[0] + i), all(inverse_rms)), load(in[1] + i)); }
};
struct SiluGate {
  static constexpr int kInputs = 2;
  SAPWOOD_INLINE F at(const float* const* in, int64_t i) const { return mul(silu(load(in[0] + i)), load(in[1] + i)); }
};
struct GeluGate {
  static constexpr int kInputs = 2;
  SAPWOOD_INLINE F at(const float* const* in, int64_t i) const { return mul(gelu_tanh(load(in[0] + i)), load(in[1] + i)); }
};

struct Group {  // 32 numbers in registers
  F v[4];
};

template <int kLimit>
SAPWOOD_INLINE float codes_of(const Group& x, float largest, I (&codes)[4]) {
  const float inverse = largest >= kSmallest ? float(kLimit) / largest : 0.f;
  for (int i = 0; i < 4; i++) codes[i] = to_int(mul(x.v[i], all(inverse)));
  return largest < kSmallest ? 0.f : largest / float(kLimit);
}

SAPWOOD_INLINE unsigned above(const Group& magnitudes, float bound) {  // bit i: number i is
  unsigned found = 0;
  for (int j = 0; j < 4; j++) found |= lanes_above(magnitudes.v[j], all(bound)) << 8 * j;
  return found;
}

SAPWOOD_INLINE int at(I v, int lane) {
  alignas(32) int32_t lanes[8];
  store_int(lanes, v);
  return lanes[lane];
}

SAPWOOD_INLINE float largest_without(const Group& magnitudes, int index) {
  F m = zero();
  for (int j = 0; j < 4; j++) m = max_magnitude(m, without_lane(magnitudes.v[j], index - 8 * j));
  return largest_magnitude(m);
}

SAPWOOD_INLINE float reach(float lead, float others) { return others * kLeadReach >= lead ? others : lead / kLeadReach; }

SAPWOOD_INLINE void mark(const Lead8& lead, int64_t g, const Codes8& out) {
  out.lead[g] = lead;
  uint64_t& word = out.led[g / kLedGroups];
  word = (g % kLedGroups ? word : 0) | uint64_t(lead.digits != 0) << g % kLedGroups;
}

SAPWOOD_INLINE float largest_of(const Group& x) {
  F m = zero();
  for (int j = 0; j < 4; j++) m = max_magnitude(m, abs(x.v[j]));
  return largest_magnitude(m);
}

SAPWOOD_INLINE Group quantize8(const Group& x, float largest, int64_t g, const Codes8& out) {  // what the codes leave
  Group magnitudes, left;
  for (int j = 0; j < 4; j++) magnitudes.v[j] = abs(x.v[j]);
  const unsigned high_ones = above(magnitudes, largest * kLeadShare);  // none where it is NaN or infinite
  const bool led = std::has_single_bit(high_ones);
  const int lead = std::countr_zero(high_ones);
  I c[4];
  const float scale = codes_of<127>(x, led ? reach(largest, largest_without(magnitudes, lead)) : largest, c);
  const int first = sum_of_int(add32(c[0], c[1])), second = sum_of_int(add32(c[2], c[3]));
  for (int j = 0; j < 4; j++) left.v[j] = fnma(to_float(c[j]), all(scale), x.v[j]);
  out.scale[g] = scale;
  out.half_sum[2 * g] = scale * float(first);
  out.half_sum[2 * g + 1] = scale * float(second);
  out.sum[g] = scale * float(int(unsigned(first) + unsigned(second)));  // where a number is not finite, so is scale: any sum will do
  store_int(out.codes + g * kGroup, pack8(pack16(c[0], c[1]), pack16(c[2], c[3])));
  if (!led) return mark({}, g, out), left;
  const int code = at(c[lead / 8], lead % 8), high = (code + 64) >> 7;
  out.codes[g * kGroup + lead] = int8_t(code - 128 * high);
  mark({uint32_t(uint8_t(high)) << 8 * (lead % 4), lead / 4}, g, out);
  return left;
}

SAPWOOD_INLINE void quantize13(const Group& x, float largest, int64_t g, const QuantizedRow& out) {
  I c[4];
  out.scale13[g] = codes_of<4095>(x, largest, c);
  store_int(out.codes13 + g * kGroup, pack16(c[0], c[1]));
  store_int(out.codes13 + g * kGroup + 16, pack16(c[2], c[3]));
}

template <class Source>
SAPWOOD_INLINE void emit_group(const Source& source, const float* const* in, int64_t i, int64_t g, const QuantizedRow& out) {
  Group x;
  for (int j = 0; j < 4; j++) x.v[j] = source.at(in, i + 8 * j);
  if (out.want & kWantValues)
    for (int j = 0; j < 4; j++) store(out.values + g * kGroup + 8 * j, x.v[j]);
  if ((out.want & (kWant8 | kWant13)) == 0) return;
  const float largest = largest_of(x);
  if (out.want & kWant8) {
    const Group left = quantize8(x, largest, g, out.first);
    if (out.want & kWantRest) quantize8(left, largest_of(left), g, out.rest);
  }
  if (out.want & kWant13) quantize13(x, largest, g, out);
}

template <int kInputs>
struct TailCopy {  // the last k % 32 numbers of each input, followed by zeros
  float rows[kInputs][kGroup] = {};
  const float* pointers[kInputs];
  TailCopy(const float* const* in, int64_t from, int64_t k) {
    for (int n = 0; n < kInputs; n++) {
      std::memcpy(rows[n], in[n] + from, size_t(k - from) * sizeof(float));
      pointers[n] = rows[n];
    }
  }
};

template <class Source>
SAPWOOD_INLINE void emit(const Source& source, const float* const* in, int64_t k, const QuantizedRow& out) {
  const int64_t whole = k / kGroup;
  for (int64_t g = 0; g < whole; g++) emit_group(source, in, g * kGroup, g, out);
  if (whole * kGroup == k) return;
  const TailCopy<Source::kInputs> tail(in, whole * kGroup, k);
  emit_group(source, tail.pointers, 0, whole, out);
}

void quantize(const float* x, int64_t k, const QuantizedRow& out) { emit(Plain{}, &x, k, out); }

SAPWOOD_INLINE void add_squares(const float* x, F (&sums)[4]) {
  for (int j = 0; j < 4; j++) {
    const F v = load(x + 8 * j);
    sums[j] = fma(v, v, sums[j]);
  }
}

float inverse_rms(const float* x, int64_t k, float epsilon) {
  F sums[4] = {zero(), zero(), zero(), zero()};
  const int64_t whole = k / kGroup * kGroup;
  for (int64_t i = 0; i < whole; i += kGroup) add_squares(x + i, sums);
  if (whole != k) add_squares(TailCopy<1>(&x, whole, k).rows[0], sums);
  const float mean = sum_of(add(add(sums[0], sums[1]), add(sums[2], sums[3]))) / float(k);
  return 1.f / std::sqrt(mean + epsilon);
}

void rms_norm(const float* x, const float* weight, int64_t k, float epsilon, const QuantizedRow& out) {
  const float* in[2] = {x, weight};
  emit(Normed{inverse_rms(x, k, epsilon)}, in, k, out);
}

void add_rows(float* residual, const float* delta, int64_t k) {
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) store(residual + i, add(load(residual + i), load(delta + i)));
  for (; i < k; i++) residual[i] += delta[i];
}

void add_normed(float* residual, const float* delta, const float* weight, int64_t k, float epsilon) {
  const float r = inverse_rms(delta, k, epsilon);
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) store(residual + i, add(load(residual + i), mul(mul(load(delta + i), all(r)), load(weight + i))));
  for (; i < k; i++) residual[i] += delta[i] * r * weight[i];
}

void silu_gate(const float* gate, const float* up, int64_t k, const QuantizedRow& out) {
  const float* in[2] = {gate, up};
  emit(SiluGate{}, in, k, out);
}

void gelu_gate(const float* gate, const float* up, int64_t k, const QuantizedRow& out) {
  const float* in[2] = {gate, up};
  emit(GeluGate{}, in, k, out);
}

}  // namespace

void fill_row_kernels(KernelTable& table) {
  table.quantize = quantize;
  table.rms_norm = rms_norm;
  table.add_rows = add_rows;
  table.add_normed = add_normed;
  table.silu_gate = silu_gate;
  table.gelu_gate = gelu_gate;
}

}  // namespace sapwood::SAPWOOD_ISA
