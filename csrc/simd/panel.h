// Owns: the 16 columns of a panel as one value: two vectors of simd.h, or one 512-bit vector where AVX-512 is there. The second
// form executes half as many instructions; a column's arithmetic is the same in both.
//
// Vocabulary: PF = 16 floats, PI = 16 x 32 bits of integers, PB = the same 32 bits for every column.
#pragma once
#include "simd/simd.h"

namespace sapwood::SAPWOOD_ISA {

#if defined(SAPWOOD_ISA_VNNI)

using PF = __m512;
using PI = __m512i;
using PB = __m512i;

SAPWOOD_INLINE PF panel_zero() { return _mm512_setzero_ps(); }
SAPWOOD_INLINE PF panel_all(float x) { return _mm512_set1_ps(x); }
SAPWOOD_INLINE PF panel_load(const float* p) { return _mm512_loadu_ps(p); }
SAPWOOD_INLINE PF panel_load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
SAPWOOD_INLINE PF panel_load_bfloat(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
SAPWOOD_INLINE PF panel_load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
SAPWOOD_INLINE PF panel_load_s8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
SAPWOOD_INLINE void panel_store(float* p, PF a) { _mm512_storeu_ps(p, a); }
SAPWOOD_INLINE PF mul(PF a, PF b) { return _mm512_mul_ps(a, b); }
SAPWOOD_INLINE PF fma(PF a, PF b, PF c) { return _mm512_fmadd_ps(a, b, c); }
SAPWOOD_INLINE PF negate(PF a) { return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN))); }
SAPWOOD_INLINE PF to_float(PI a) { return _mm512_cvtepi32_ps(a); }

SAPWOOD_INLINE PI panel_load_int(const void* p) { return _mm512_loadu_si512(p); }
SAPWOOD_INLINE PI panel_load_widened_s8(const int8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
SAPWOOD_INLINE void panel_store_int(void* p, PI a) { _mm512_storeu_si512(p, a); }
SAPWOOD_INLINE PB panel_broadcast4(const void* p) {
  int word;
  std::memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}
SAPWOOD_INLINE PI and_all8(PI a, int mask) { return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(mask))); }
SAPWOOD_INLINE PI bit_or(PI a, PI b) { return _mm512_or_si512(a, b); }
template <int n>
SAPWOOD_INLINE PI add_all8(PI a) {
  if constexpr (n == 0) return a;
  else return _mm512_add_epi8(a, _mm512_set1_epi8(n));
}
template <int n>
SAPWOOD_INLINE PI shift16(PI a) {
  if constexpr (n > 0) return _mm512_slli_epi16(a, n);
  else if constexpr (n < 0) return _mm512_srli_epi16(a, -n);
  else return a;
}
SAPWOOD_INLINE PI shift16_right(PI a, int n) { return _mm512_srl_epi16(a, _mm_cvtsi32_si128(n)); }

struct PanelDot {  // Dot of simd.h, 16 columns
  PI total;
  // The four numbers are broadcast by the instruction itself, which the compiler does not find.
  SAPWOOD_INLINE void add(PI codes, const int8_t (&activations)[4]) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(total) : "v"(codes), "m"(activations));
  }
  SAPWOOD_INLINE void open(PI codes, const int8_t (&activations)[4]) { total = _mm512_setzero_si512(), add(codes, activations); }
  SAPWOOD_INLINE void open(PI codes, const int8_t (&activations)[4], int start) { total = _mm512_set1_epi32(start), add(codes, activations); }
  SAPWOOD_INLINE PF scaled(const Factor8& factor) const { return mul(to_float(total), panel_all(factor.number)); }
  template <int kOffset>
  static SAPWOOD_INLINE PF lead(PI codes, PB digits, int high, const Factor8& factor) {
    return mul(to_float(_mm512_dpbusd_epi32(_mm512_set1_epi32(-kOffset * high), codes, digits)), panel_all(factor.number));
  }
};
struct PanelDotWide {  // DotWide of simd.h, 16 columns
  PI total;
  SAPWOOD_INLINE void add(int step, PI weights, PB activations) {
    total = _mm512_dpwssd_epi32(step == 0 ? _mm512_setzero_si512() : total, weights, activations);
  }
};

#else

struct PF {
  F half[2];
};
struct PI {
  I half[2];
};
using PB = B;

SAPWOOD_INLINE PF panel_zero() { return {zero(), zero()}; }
SAPWOOD_INLINE PF panel_all(float x) { return {all(x), all(x)}; }
SAPWOOD_INLINE PF panel_load(const float* p) { return {load(p), load(p + 8)}; }
SAPWOOD_INLINE PF panel_load_half(const uint16_t* p) { return {load_half(p), load_half(p + 8)}; }
SAPWOOD_INLINE PF panel_load_bfloat(const uint16_t* p) { return {load_bfloat(p), load_bfloat(p + 8)}; }
SAPWOOD_INLINE PF panel_load_u8(const uint8_t* p) { return {load_u8(p), load_u8(p + 8)}; }
SAPWOOD_INLINE PF panel_load_s8(const int8_t* p) { return {load_s8(p), load_s8(p + 8)}; }
SAPWOOD_INLINE void panel_store(float* p, PF a) { store(p, a.half[0]), store(p + 8, a.half[1]); }
SAPWOOD_INLINE PF mul(PF a, PF b) { return {mul(a.half[0], b.half[0]), mul(a.half[1], b.half[1])}; }
SAPWOOD_INLINE PF fma(PF a, PF b, PF c) { return {fma(a.half[0], b.half[0], c.half[0]), fma(a.half[1], b.half[1], c.half[1])}; }
SAPWOOD_INLINE PF negate(PF a) { return {negate(a.half[0]), negate(a.half[1])}; }
SAPWOOD_INLINE PF to_float(PI a) { return {to_float(a.half[0]), to_float(a.half[1])}; }

SAPWOOD_INLINE PI panel_load_int(const void* p) { return {load_int(p), load_int(static_cast<const std::byte*>(p) + 32)}; }
SAPWOOD_INLINE PI panel_load_widened_s8(const int8_t* p) { return {load_widened_s8(p), load_widened_s8(p + 16)}; }
SAPWOOD_INLINE void panel_store_int(void* p, PI a) { store_int(p, a.half[0]), store_int(static_cast<std::byte*>(p) + 32, a.half[1]); }
SAPWOOD_INLINE PB panel_broadcast4(const void* p) { return broadcast4(p); }
SAPWOOD_INLINE PI and_all8(PI a, int mask) { return {bit_and(a.half[0], all8(mask)), bit_and(a.half[1], all8(mask))}; }
template <int n>
SAPWOOD_INLINE PI add_all8(PI a) {
  static_assert(n == 0, "codes are signed for the tile unit alone");
  return a;
}
SAPWOOD_INLINE PI bit_or(PI a, PI b) { return {bit_or(a.half[0], b.half[0]), bit_or(a.half[1], b.half[1])}; }
template <int n>
SAPWOOD_INLINE PI shift16(PI a) { return {shift16<n>(a.half[0]), shift16<n>(a.half[1])}; }
SAPWOOD_INLINE PI shift16_right(PI a, int n) { return {shift16_right(a.half[0], n), shift16_right(a.half[1], n)}; }

struct PanelDot {
  Dot half[2];
  SAPWOOD_INLINE void open(PI codes, const int8_t (&activations)[4]) {
    const PB four = panel_broadcast4(activations);
    for (int c = 0; c < 2; c++) half[c].open(codes.half[c], four);
  }
  SAPWOOD_INLINE void open(PI codes, const int8_t (&activations)[4], int start) {
    const PB four = panel_broadcast4(activations);
    for (int c = 0; c < 2; c++) half[c].open(codes.half[c], four, start);
  }
  SAPWOOD_INLINE void add(PI codes, const int8_t (&activations)[4]) {
    const PB four = panel_broadcast4(activations);
    for (int c = 0; c < 2; c++) half[c].add(codes.half[c], four);
  }
  SAPWOOD_INLINE PF scaled(const Factor8& factor) const { return {half[0].scaled(factor), half[1].scaled(factor)}; }
  template <int kOffset>
  static SAPWOOD_INLINE PF lead(PI codes, PB digits, int high, const Factor8& factor) {
    return {Dot::lead<kOffset>(codes.half[0], digits, high, factor), Dot::lead<kOffset>(codes.half[1], digits, high, factor)};
  }
};
struct PanelDotWide {
  PI total;
  DotWide half[2];
  SAPWOOD_INLINE void add(int step, PI weights, PB activations) {
    for (int c = 0; c < 2; c++) half[c].add(step, weights.half[c], activations), total.half[c] = half[c].total;
  }
};

#endif

}  // namespace sapwood::SAPWOOD_ISA
