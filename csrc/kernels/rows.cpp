// Owns: what happens to one row between two linears: RMSNorm, the gated activations, and their quantisation.
// Invariant: a row depends on nothing but itself; sums run over fixed vector lanes in ascending order.
//
//   numbers of the row (norm, gate)  ->  largest of each group, its lead  ->  scales, eight groups at a time  ->  codes
//
// Quantisation of a group of 32 to 13 bits: scale = largest magnitude / 4095, code = nearest(x / scale).
// To 8 bits: the same with 127, but scales are whole multiples of the row's unit, the next larger ones (Codes8); and a number more
// than 2.5 times as large as all others of its group would leave few codes to them. It becomes the group's lead, with a second digit
// that reaches 128 times as far as theirs:
//   reach = max(second largest, largest / 128);  unit = largest reach of the row / 127 / 32767;  scale = unit * ceil(reach / 127 / unit)
//   lead = nearest(x / scale) = 128 * high + low, low in -64..63
// Where the rest is wanted, what these codes leave of each number (at most half a scale) is quantised in the same way once more:
// together they hold 15 bits and a sign.
// A NaN makes its row's unit NaN (its group's scale of 13 bits), so it reaches every output instead of becoming a number. So does an
// infinity: codes have no sign of it, and so none of the sums that it would be multiplied with.
#include <bit>
#include <new>

#include "kernels/tables.h"
#include "simd/vmath.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

constexpr float kSmallest = 1e-28f;  // smaller groups are zero: their reciprocals, and that of the unit of a lead, would overflow
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

SAPWOOD_INLINE Group load_group(const float* x) { return {{load(x), load(x + 8), load(x + 16), load(x + 24)}}; }

// A row on its way, and what is known of its groups; the last groups are filled up to eight with zeros.
class Scratch {
 public:
  float *values, *lanes;                        // [groups * 32]; [groups * 8]: the largest of each lane's four magnitudes
  float *largest, *reach, *factor, *inverse;    // [groups]
  int* lead;                                    // [groups]: which number is the lead, -1 where none is
  ~Scratch() { free(); }
  void make_room(int64_t groups) {
    const int64_t padded = (groups + 7) / 8 * 8;
    if (padded > groups_) {
      free();
      groups_ = padded;
      values = static_cast<float*>(::operator new(size_t(padded) * (kGroup + 13) * sizeof(float), kAligned));
      lanes = values + padded * kGroup, largest = lanes + padded * 8, reach = largest + padded, factor = reach + padded, inverse = factor + padded;
      lead = reinterpret_cast<int*>(inverse + padded);
    }
    for (int64_t g = groups; g < padded; g++) store(lanes + g * 8, zero()), reach[g] = 0;
  }

 private:
  static constexpr std::align_val_t kAligned{64};
  int64_t groups_ = 0;
  void free() {
    if (groups_ > 0) ::operator delete(values, kAligned);
  }
};

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

SAPWOOD_INLINE Group magnitudes_of(const Group& x) { return {{abs(x.v[0]), abs(x.v[1]), abs(x.v[2]), abs(x.v[3])}}; }

SAPWOOD_INLINE F largest_lanes(const Group& magnitudes) {
  return max_magnitude(max_magnitude(magnitudes.v[0], magnitudes.v[1]), max_magnitude(magnitudes.v[2], magnitudes.v[3]));
}

SAPWOOD_INLINE float largest_without(Group magnitudes, int index) {
  for (int j = 0; j < 4; j++) magnitudes.v[j] = without_lane(magnitudes.v[j], index - 8 * j);
  return largest_magnitude(largest_lanes(magnitudes));
}

SAPWOOD_INLINE float further(float lead, float others) { return others * kLeadReach >= lead ? others : lead / kLeadReach; }

SAPWOOD_INLINE void put_group(const Group& x, int64_t g, const Scratch& s) {
  for (int j = 0; j < 4; j++) store(s.values + g * kGroup + 8 * j, x.v[j]);
  store(s.lanes + g * 8, largest_lanes(magnitudes_of(x)));
}

SAPWOOD_INLINE void find_largest(int64_t groups, const Scratch& s) {
  for (int64_t g = 0; g < groups; g += 8) store(s.largest + g, largest_of_each(s.lanes + g * 8));
}

SAPWOOD_INLINE void find_lead(int64_t g, const Scratch& s) {
  const float largest = s.largest[g], bound = largest * kLeadShare;
  s.lead[g] = -1;
  s.reach[g] = largest < kSmallest ? 0.f : largest;
  if (!std::has_single_bit(lanes_above(load(s.lanes + g * 8), all(bound))) || largest < kSmallest) return;
  const Group magnitudes = magnitudes_of(load_group(s.values + g * kGroup));
  const unsigned high_ones = above(magnitudes, bound);
  if (!std::has_single_bit(high_ones)) return;
  s.lead[g] = std::countr_zero(high_ones);
  s.reach[g] = further(largest, largest_without(magnitudes, s.lead[g]));
}

// Factors of the groups, and what the numbers of each are multiplied with to give codes; returns the row's unit.
SAPWOOD_INLINE float share_unit(int64_t groups, const Scratch& s) {
  F most = zero();
  for (int64_t g = 0; g < groups; g += 8) most = max_magnitude(most, load(s.reach + g));
  const float largest = largest_magnitude(most);
  const float unit = largest == 0 ? 1.f : largest / (127.f * kLargestFactor) + (largest - largest);  // NaN where it is not finite
  const float factor_of_reach = largest == 0 ? 0.f : float(kLargestFactor) / largest;
  for (int64_t g = 0; g < groups; g += 8) {
    const F factor = min(nearest(fma(load(s.reach + g), all(factor_of_reach), all(0.5f))), all(float(kLargestFactor)));
    store(s.factor + g, factor);
    store(s.inverse + g, zero_below(factor, div(all(1.f), mul(factor, all(unit))), all(1.f)));
  }
  return unit;
}

SAPWOOD_INLINE void mark(bool led, int64_t g, uint64_t& word) {
  word = (g % kLedGroups ? word : 0) | uint64_t(led) << g % kLedGroups;
}

// Takes the high digit out of the lead's code and returns it; 0 where the row's unit is not finite, which makes a code of no number.
SAPWOOD_INLINE int split_lead(int lead, I (&c)[4]) {
  const int high = int8_t((at(c[lead / 8], lead % 8) + 64) >> 7);
  for (int j = 0; j < 4; j++) c[j] = sub32(c[j], bit_and(is_lane(lead - 8 * j), all32(128 * high)));
  return high;
}

template <bool kLeave>  // what the codes leave of the numbers, in their place
SAPWOOD_INLINE void write_group8(int64_t g, float unit, const Scratch& s, const Codes8& row) {
  const Group x = load_group(s.values + g * kGroup);
  Group8& out = row.groups[g];
  I c[4];
  for (int j = 0; j < 4; j++) c[j] = to_int(mul(x.v[j], all(s.inverse[g])));
  if constexpr (kLeave)
    for (int j = 0; j < 4; j++) store(s.values + g * kGroup + 8 * j, fnma(to_float(c[j]), all(s.factor[g] * unit), x.v[j]));
  const bool led = s.lead[g] >= 0;
  const int high = led ? split_lead(s.lead[g], c) : 0, factor = int(s.factor[g]);
  out.high = int8_t(high), out.lead = int8_t(led ? s.lead[g] : 0);
  mark(high != 0, g, row.led[g / kLedGroups]);
  const I packed = pack8(c);
  store_int(out.codes, packed);
  const int sum = find_starts(packed, out.starts);
  out.factor = {{int16_t(factor), int16_t(factor)}, s.factor[g]};
  out.sum = float(int(unsigned(factor) * unsigned(sum + 128 * high)));
}

template <bool kLeave>
void quantize8(int64_t groups, const Scratch& s, const Codes8& out) {
  for (int64_t g = 0; g < groups; g++) find_lead(g, s);
  *out.unit = share_unit(groups, s);
  for (int64_t g = 0; g < groups; g++) write_group8<kLeave>(g, *out.unit, s, out);
}

void quantize13(int64_t groups, const Scratch& s, const QuantizedRow& out) {
  for (int64_t g = 0; g < groups; g += 8) {
    const F largest = load(s.largest + g);
    store(s.inverse + g, zero_below(largest, div(all(4095.f), largest), all(kSmallest)));
    store(s.factor + g, div(largest, all(4095.f)));
  }
  for (int64_t g = 0; g < groups; g++) {
    const Group x = load_group(s.values + g * kGroup);
    I c[4];
    for (int j = 0; j < 4; j++) c[j] = to_int(mul(x.v[j], all(s.inverse[g])));
    out.scale13[g] = s.factor[g];
    store_int(out.codes13 + g * kGroup, pack16(c[0], c[1]));
    store_int(out.codes13 + g * kGroup + 16, pack16(c[2], c[3]));
  }
}

// The scratch holds the row's numbers and the largest of each lane.
void quantize_row(int64_t groups, const Scratch& s, const QuantizedRow& out) {
  find_largest(groups, s);
  if (out.want & kWant13) quantize13(groups, s, out);
  if (!(out.want & kWant8)) return;
  if (!(out.want & kWantRest)) return quantize8<false>(groups, s, out.first);
  quantize8<true>(groups, s, out.first);
  for (int64_t g = 0; g < groups; g++) put_group(load_group(s.values + g * kGroup), g, s);
  find_largest(groups, s);
  quantize8<false>(groups, s, out.rest);
}

template <class Source>
SAPWOOD_INLINE void take_group(const Source& source, const float* const* in, int64_t i, int64_t g, const QuantizedRow& out, const Scratch& s) {
  Group x;
  for (int j = 0; j < 4; j++) x.v[j] = source.at(in, i + 8 * j);
  if (out.want & kWantValues)
    for (int j = 0; j < 4; j++) store(out.values + g * kGroup + 8 * j, x.v[j]);
  if (out.want & (kWant8 | kWant13)) put_group(x, g, s);
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
  static thread_local Scratch scratch;
  const int64_t whole = k / kGroup, groups = (k + kGroup - 1) / kGroup;
  scratch.make_room(groups);
  for (int64_t g = 0; g < whole; g++) take_group(source, in, g * kGroup, g, out, scratch);
  if (whole < groups) {
    const TailCopy<Source::kInputs> tail(in, whole * kGroup, k);
    take_group(source, tail.pointers, 0, whole, out, scratch);
  }
  if (out.want & (kWant8 | kWant13)) quantize_row(groups, scratch, out);
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
