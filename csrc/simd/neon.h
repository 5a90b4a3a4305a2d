// Owns: the operations of simd.h on NEON with the dot products of Armv8.2; 256 bits are two registers.
// Invariant: same bits as simd/portable.h, also where a number is not one or does not fit.
#pragma once
#include <arm_neon.h>

namespace sapwood::SAPWOOD_ISA {

struct F {
  float32x4_t v[2];
};
struct I {
  int32x4_t v[2];
};
using B = int32x2_t;  // in lane 0: the products below take one lane for all of theirs

SAPWOOD_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

SAPWOOD_INLINE F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
SAPWOOD_INLINE F load_half(const uint16_t* p) {
  const auto halves = vreinterpretq_f16_u16(vld1q_u16(p));
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}
SAPWOOD_INLINE F load_bfloat(const uint16_t* p) {
  const auto halves = vld1q_u16(p);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(halves, 16))};
}
SAPWOOD_INLINE F load_u8(const uint8_t* p) {
  const auto wide = vmovl_u8(vld1_u8(p));
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))};
}
SAPWOOD_INLINE F load_s8(const int8_t* p) {
  const auto wide = vmovl_s8(vld1_s8(p));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
}
SAPWOOD_INLINE void store(float* p, F a) { vst1q_f32(p, a.v[0]), vst1q_f32(p + 4, a.v[1]); }
SAPWOOD_INLINE void store_half(uint16_t* p, F a) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.v[0]), a.v[1])));
}
SAPWOOD_INLINE F all(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
SAPWOOD_INLINE F zero() { return all(0); }
SAPWOOD_INLINE F add(F a, F b) { return {vaddq_f32(a.v[0], b.v[0]), vaddq_f32(a.v[1], b.v[1])}; }
SAPWOOD_INLINE F sub(F a, F b) { return {vsubq_f32(a.v[0], b.v[0]), vsubq_f32(a.v[1], b.v[1])}; }
SAPWOOD_INLINE F mul(F a, F b) { return {vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1])}; }
SAPWOOD_INLINE F div(F a, F b) { return {vdivq_f32(a.v[0], b.v[0]), vdivq_f32(a.v[1], b.v[1])}; }
SAPWOOD_INLINE F fma(F a, F b, F c) { return {vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1])}; }
SAPWOOD_INLINE F fnma(F a, F b, F c) { return {vfmsq_f32(c.v[0], a.v[0], b.v[0]), vfmsq_f32(c.v[1], a.v[1], b.v[1])}; }
// The instructions for the larger and smaller number give NaN where either is; here that must be b.
SAPWOOD_INLINE float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
SAPWOOD_INLINE float32x4_t smaller(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
SAPWOOD_INLINE F max(F a, F b) { return {larger(a.v[0], b.v[0]), larger(a.v[1], b.v[1])}; }
SAPWOOD_INLINE F min(F a, F b) { return {smaller(a.v[0], b.v[0]), smaller(a.v[1], b.v[1])}; }
SAPWOOD_INLINE int32x4_t bits_of(float32x4_t a) { return vreinterpretq_s32_f32(a); }
SAPWOOD_INLINE float32x4_t from_bits(int32x4_t a) { return vreinterpretq_f32_s32(a); }
SAPWOOD_INLINE int32x4_t larger_bits(float32x4_t a, float32x4_t b) { return vmaxq_s32(bits_of(a), bits_of(b)); }
SAPWOOD_INLINE F max_magnitude(F a, F b) {
  return {from_bits(larger_bits(a.v[0], b.v[0])), from_bits(larger_bits(a.v[1], b.v[1]))};
}
SAPWOOD_INLINE float largest_magnitude(F a) { return std::bit_cast<float>(vmaxvq_s32(larger_bits(a.v[0], a.v[1]))); }
SAPWOOD_INLINE F largest_of_each(const float* numbers) {
  float each[8];
  for (int i = 0; i < 8; i++) each[i] = largest_magnitude(load(numbers + 8 * i));
  return load(each);
}
SAPWOOD_INLINE unsigned lanes_above(F a, F b) {
  const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
  const uint32x4_t above_low = vcgtq_s32(bits_of(a.v[0]), bits_of(b.v[0])), above_high = vcgtq_s32(bits_of(a.v[1]), bits_of(b.v[1]));
  return vaddvq_u32(vorrq_u32(vandq_u32(above_low, low), vandq_u32(above_high, high)));
}
SAPWOOD_INLINE float32x4_t keep_where(uint32x4_t mask, float32x4_t a) {
  return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(a)));
}
SAPWOOD_INLINE I is_lane(int lane) {
  const int32x4_t low = {0, 1, 2, 3}, high = {4, 5, 6, 7}, there = vdupq_n_s32(lane);
  return {vreinterpretq_s32_u32(vceqq_s32(low, there)), vreinterpretq_s32_u32(vceqq_s32(high, there))};
}
SAPWOOD_INLINE F without_lane(F a, int lane) {
  const I gone = is_lane(lane);
  return {from_bits(vbicq_s32(bits_of(a.v[0]), gone.v[0])), from_bits(vbicq_s32(bits_of(a.v[1]), gone.v[1]))};
}
SAPWOOD_INLINE F negate(F a) { return {vnegq_f32(a.v[0]), vnegq_f32(a.v[1])}; }
SAPWOOD_INLINE F abs(F a) { return {vabsq_f32(a.v[0]), vabsq_f32(a.v[1])}; }
SAPWOOD_INLINE F zero_below(F a, F value, F bound) {
  return {keep_where(vcgeq_f32(a.v[0], bound.v[0]), value.v[0]), keep_where(vcgeq_f32(a.v[1], bound.v[1]), value.v[1])};
}
SAPWOOD_INLINE F nearest(F a) { return {vrndnq_f32(a.v[0]), vrndnq_f32(a.v[1])}; }
SAPWOOD_INLINE float32x4_t power_of_two(float32x4_t n) {
  return from_bits(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
SAPWOOD_INLINE F power_of_two(F n) { return {power_of_two(n.v[0]), power_of_two(n.v[1])}; }
SAPWOOD_INLINE float max_of(F v) {
  float32x4_t a = larger(v.v[0], v.v[1]);
  a = larger(a, vextq_f32(a, a, 2));
  return vgetq_lane_f32(larger(a, vextq_f32(a, a, 1)), 0);
}
SAPWOOD_INLINE float sum_of(F v) {
  const float32x4_t a = vaddq_f32(v.v[0], v.v[1]);
  return vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)));
}

SAPWOOD_INLINE int32x4_t from_bytes(int8x16_t a) { return vreinterpretq_s32_s8(a); }
SAPWOOD_INLINE int8x16_t bytes_of(int32x4_t a) { return vreinterpretq_s8_s32(a); }
SAPWOOD_INLINE I zero_int() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
SAPWOOD_INLINE I load_int(const void* p) {
  const auto* bytes = static_cast<const int8_t*>(p);
  return {from_bytes(vld1q_s8(bytes)), from_bytes(vld1q_s8(bytes + 16))};
}
SAPWOOD_INLINE void store_int(void* p, I a) {
  auto* bytes = static_cast<int8_t*>(p);
  vst1q_s8(bytes, bytes_of(a.v[0])), vst1q_s8(bytes + 16, bytes_of(a.v[1]));
}
SAPWOOD_INLINE I load_widened_s8(const int8_t* p) {  // v[0]: the first of each pair, v[1]: the second
  const int16x8_t pairs = vreinterpretq_s16_s8(vld1q_s8(p));
  return {vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(pairs, 8), 8)), vreinterpretq_s32_s16(vshrq_n_s16(pairs, 8))};
}
SAPWOOD_INLINE B broadcast4(const void* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return vcreate_s32(word);
}
SAPWOOD_INLINE I all32(int x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
SAPWOOD_INLINE I all8(int x) { return {from_bytes(vdupq_n_s8(int8_t(x))), from_bytes(vdupq_n_s8(int8_t(x)))}; }
SAPWOOD_INLINE I bit_and(I a, I b) { return {vandq_s32(a.v[0], b.v[0]), vandq_s32(a.v[1], b.v[1])}; }
SAPWOOD_INLINE I bit_or(I a, I b) { return {vorrq_s32(a.v[0], b.v[0]), vorrq_s32(a.v[1], b.v[1])}; }
template <int n>
SAPWOOD_INLINE int32x4_t shift16(int32x4_t a) {
  if constexpr (n > 0) return vreinterpretq_s32_u16(vshlq_n_u16(vreinterpretq_u16_s32(a), n));
  else if constexpr (n < 0) return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a), -n));
  else return a;
}
template <int n>
SAPWOOD_INLINE I shift16(I a) { return {shift16<n>(a.v[0]), shift16<n>(a.v[1])}; }
SAPWOOD_INLINE int32x4_t shift16_right(int32x4_t a, int n) {
  return vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(a), vdupq_n_s16(int16_t(-n))));
}
SAPWOOD_INLINE I shift16_right(I a, int n) { return {shift16_right(a.v[0], n), shift16_right(a.v[1], n)}; }
SAPWOOD_INLINE I add32(I a, I b) { return {vaddq_s32(a.v[0], b.v[0]), vaddq_s32(a.v[1], b.v[1])}; }
SAPWOOD_INLINE I sub32(I a, I b) { return {vsubq_s32(a.v[0], b.v[0]), vsubq_s32(a.v[1], b.v[1])}; }
SAPWOOD_INLINE F to_float(I a) { return {vcvtq_f32_s32(a.v[0]), vcvtq_f32_s32(a.v[1])}; }
SAPWOOD_INLINE int32x4_t to_int(float32x4_t a) {  // the instruction saturates and makes 0 of NaN; here both must be INT_MIN
  return vbslq_s32(vcaltq_f32(a, vdupq_n_f32(0x1p31f)), vcvtnq_s32_f32(a), vdupq_n_s32(INT32_MIN));
}
SAPWOOD_INLINE I to_int(F a) { return {to_int(a.v[0]), to_int(a.v[1])}; }
SAPWOOD_INLINE int sum_of_int(I a) { return vaddvq_s32(vaddq_s32(a.v[0], a.v[1])); }
SAPWOOD_INLINE int32x4_t pack16(I a) { return vreinterpretq_s32_s16(vqmovn_high_s32(vqmovn_s32(a.v[0]), a.v[1])); }
SAPWOOD_INLINE I pack16(I a, I b) { return {pack16(a), pack16(b)}; }
SAPWOOD_INLINE int32x4_t pack8(I a) {
  return from_bytes(vqmovn_high_s16(vqmovn_s16(vreinterpretq_s16_s32(a.v[0])), vreinterpretq_s16_s32(a.v[1])));
}
SAPWOOD_INLINE I pack8(const I (&c)[4]) { return {pack8(pack16(c[0], c[1])), pack8(pack16(c[2], c[3]))}; }

SAPWOOD_INLINE void half_sums(I codes, int (&half)[2]) {  // the sums of 16 signed bytes each
  for (int i = 0; i < 2; i++) half[i] = vaddlvq_s8(bytes_of(codes.v[i]));
}

#define SAPWOOD_HAS_DOT4 1
SAPWOOD_INLINE int32x4_t dot4(int32x4_t sum, int32x4_t codes, B four) {  // the codes are below 128, so they may be read as signed
  return vdotq_lane_s32(sum, bytes_of(codes), vreinterpret_s8_s32(four), 0);
}
SAPWOOD_INLINE I dot4(I sum, I codes, B four) { return {dot4(sum.v[0], codes.v[0], four), dot4(sum.v[1], codes.v[1], four)}; }
SAPWOOD_INLINE I dot2(I sum, I weights, B two) {
  const int16x8_t first = vreinterpretq_s16_s32(weights.v[0]), second = vreinterpretq_s16_s32(weights.v[1]);
  const int16x4_t both = vreinterpret_s16_s32(two);
  return {vmlal_lane_s16(vmlal_lane_s16(sum.v[0], vget_low_s16(first), both, 0), vget_low_s16(second), both, 1),
          vmlal_high_lane_s16(vmlal_high_lane_s16(sum.v[1], first, both, 0), second, both, 1)};
}

}  // namespace sapwood::SAPWOOD_ISA
