// Owns: the operations of simd.h on AVX2 + FMA + F16C, and with SAPWOOD_ISA_VNNI or SAPWOOD_ISA_AVXVNNI the dot instructions of
// AVX-512 VNNI or AVX-VNNI on 256-bit vectors. Invariant: same bits as simd/portable.h.
#pragma once
#include <immintrin.h>

namespace sapwood::SAPWOOD_ISA {

using F = __m256;
using I = __m256i;
using B = I;

// Stops the compiler from re-associating integer sums over an unrolled loop: it would hoist every product and spill.
SAPWOOD_INLINE void keep(I& v) { asm("" : "+x"(v)); }
SAPWOOD_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

SAPWOOD_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
SAPWOOD_INLINE F load_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
SAPWOOD_INLINE F load_bfloat(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
SAPWOOD_INLINE F load_u8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
SAPWOOD_INLINE F load_s8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
SAPWOOD_INLINE void store(float* p, F v) { _mm256_storeu_ps(p, v); }
SAPWOOD_INLINE void store_half(uint16_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
SAPWOOD_INLINE F zero() { return _mm256_setzero_ps(); }
SAPWOOD_INLINE F all(float v) { return _mm256_set1_ps(v); }
SAPWOOD_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
SAPWOOD_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
SAPWOOD_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
SAPWOOD_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
SAPWOOD_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
SAPWOOD_INLINE F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
SAPWOOD_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }              // b where either is NaN
SAPWOOD_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
// The larger magnitude, compared as bits: unlike max() a NaN wins and so spreads. Both arguments must be non-negative or NaN.
SAPWOOD_INLINE F max_magnitude(F a, F b) {
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
SAPWOOD_INLINE float largest_magnitude(F v) {
  __m128i a = _mm256_castsi256_si128(_mm256_castps_si256(v));
  a = _mm_max_epi32(a, _mm_castps_si128(_mm256_extractf128_ps(v, 1)));
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1))));
}
// Lane i: the largest magnitude in numbers[8 * i .. 8 * i + 8), none of which is negative.
SAPWOOD_INLINE F largest_of_each(const float* numbers) {
  F v[8];
  for (int i = 0; i < 8; i++) v[i] = load(numbers + 8 * i);
  for (int i = 0; i < 4; i++)  // halves of i and i + 4 side by side
    v[i] = max_magnitude(_mm256_permute2f128_ps(v[i], v[i + 4], 0x20), _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
  for (int i = 0; i < 2; i++) v[i] = max_magnitude(_mm256_unpacklo_ps(v[i], v[i + 2]), _mm256_unpackhi_ps(v[i], v[i + 2]));
  return max_magnitude(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
}
SAPWOOD_INLINE unsigned lanes_above(F a, F b) {  // bit i: lane i of a is larger, compared as bits; both non-negative or NaN
  return unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)))));
}
SAPWOOD_INLINE I is_lane(int lane) {  // all bits there, none elsewhere; none at all where it is outside 0..7
  return _mm256_cmpeq_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(lane));
}
SAPWOOD_INLINE F without_lane(F a, int lane) { return _mm256_andnot_ps(_mm256_castsi256_ps(is_lane(lane)), a); }
SAPWOOD_INLINE F negate(F a) { return _mm256_xor_ps(a, all(-0.f)); }
SAPWOOD_INLINE F abs(F a) { return _mm256_andnot_ps(all(-0.f), a); }
SAPWOOD_INLINE F zero_below(F a, F value, F bound) {  // value where a >= bound, else exactly 0 (NaN in a gives 0)
  return _mm256_and_ps(value, _mm256_cmp_ps(a, bound, _CMP_GE_OQ));
}
SAPWOOD_INLINE F nearest(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SAPWOOD_INLINE F power_of_two(F n) {  // 2^n for whole n in [-126, 127]
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
SAPWOOD_INLINE float max_of(F v) {
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
SAPWOOD_INLINE float sum_of(F v) {  // ((0+4)+(2+6)) + ((1+5)+(3+7))
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

SAPWOOD_INLINE I zero_int() { return _mm256_setzero_si256(); }
SAPWOOD_INLINE I load_int(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SAPWOOD_INLINE void store_int(void* p, I v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
SAPWOOD_INLINE I load_widened_s8(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
SAPWOOD_INLINE I broadcast4(const void* p) {  // the same 4 bytes in every 32-bit lane
  int word;
  std::memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
SAPWOOD_INLINE I all8(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
SAPWOOD_INLINE I all32(int v) { return _mm256_set1_epi32(v); }
SAPWOOD_INLINE I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
SAPWOOD_INLINE I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
template <int n>
SAPWOOD_INLINE I shift16(I a) {  // left by n bits, right for negative n, within 16-bit lanes
  if constexpr (n > 0) return _mm256_slli_epi16(a, n);
  else if constexpr (n < 0) return _mm256_srli_epi16(a, -n);
  else return a;
}
SAPWOOD_INLINE I shift16_right(I a, int n) { return _mm256_srl_epi16(a, _mm_cvtsi32_si128(n)); }
SAPWOOD_INLINE I maddubs(I u, I s) { return _mm256_maddubs_epi16(u, s); }
SAPWOOD_INLINE I madd16(I a, I b) { return _mm256_madd_epi16(a, b); }
SAPWOOD_INLINE I add16(I a, I b) { return _mm256_add_epi16(a, b); }
SAPWOOD_INLINE I add32(I a, I b) { return _mm256_add_epi32(a, b); }
SAPWOOD_INLINE I sub32(I a, I b) { return _mm256_sub_epi32(a, b); }
SAPWOOD_INLINE F to_float(I a) { return _mm256_cvtepi32_ps(a); }
SAPWOOD_INLINE I to_int(F a) { return _mm256_cvtps_epi32(a); }  // nearest, ties to even
SAPWOOD_INLINE int sum_of_int(I v) {
  __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}
SAPWOOD_INLINE I pack16(I a, I b) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8); }  // 8 + 8 int32 -> int16
SAPWOOD_INLINE I pack8(const I (&c)[4]) {  // 4 x 8 int32 -> int8; packing keeps to its half of a vector, so 32 bits of each come in turn
  const I packed = _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// A lane of 32 bits has the sums of numbers 4i, 4i + 1 and of 4i + 2, 4i + 3.
SAPWOOD_INLINE int pair_starts(I codes, DotStarts& starts) {
  I pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
  pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
  const __m128i first = _mm256_castsi256_si128(pairs), second = _mm256_extracti128_si256(pairs, 1), whole = _mm_add_epi16(first, second);
  const __m128i each = _mm_blend_epi16(whole, _mm_unpacklo_epi32(first, second), 0xf0);  // whole, whole, first, second
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&starts), _mm_mullo_epi16(each, _mm_setr_epi16(-8, -8, -16, -16, -32, -32, -32, -32)));
  const int both = _mm_cvtsi128_si32(whole);
  return int16_t(both) + (both >> 16);
}

#if defined(SAPWOOD_ISA_VNNI)
#define SAPWOOD_HAS_DOT4 1
SAPWOOD_INLINE I dot4(I sum, I u, I s) { return _mm256_dpbusd_epi32(sum, u, s); }
SAPWOOD_INLINE I dot2(I sum, I a, I b) { return _mm256_dpwssd_epi32(sum, a, b); }
#elif defined(SAPWOOD_ISA_AVXVNNI)
#define SAPWOOD_HAS_DOT4 1
SAPWOOD_INLINE I dot4(I sum, I u, I s) { return _mm256_dpbusd_avx_epi32(sum, u, s); }
SAPWOOD_INLINE I dot2(I sum, I a, I b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
#endif

#if defined(SAPWOOD_HAS_DOT4)
SAPWOOD_INLINE void half_sums(I codes, int (&half)[2]) {  // the sums of 16 signed bytes each
  I sums = dot4(zero_int(), all8(1), codes);
  sums = add32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  sums = add32(sums, _mm256_shuffle_epi32(sums, 0xb1));
  half[0] = _mm256_cvtsi256_si32(sums), half[1] = _mm256_extract_epi32(sums, 4);
}
#endif

}  // namespace sapwood::SAPWOOD_ISA
