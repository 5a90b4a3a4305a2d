// Owns: the seam between the kernels and the instruction set. A kernel file is compiled once per instruction set with
// SAPWOOD_ISA naming its namespace (isa_portable, isa_avx2, ...); everything below lives in that namespace, so that
// no function compiled for one instruction set is ever linked into another.
//
// Vocabulary: F = 8 floats, I = 256 bits of integers (the function names the element type), B = the same 32 bits for each lane.
// Invariant: each operation gives the same bits on every instruction set: float operations are IEEE and explicit about
// fusing (the library is compiled with -ffp-contract=off), integer dot products are exact.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/half.h"

#define SAPWOOD_NOINLINE __attribute__((noinline))
#define SAPWOOD_PRAGMA(x) _Pragma(#x)
#if defined(SAPWOOD_ISA_PORTABLE)  // lanes are loops here: unrolling around them would cost minutes of compilation for nothing
#define SAPWOOD_INLINE inline
#define SAPWOOD_UNROLL(n)
#else
#define SAPWOOD_INLINE inline __attribute__((always_inline))
#define SAPWOOD_UNROLL(n) SAPWOOD_PRAGMA(GCC unroll n)
#endif

#if defined(SAPWOOD_ISA_PORTABLE)
#include "simd/portable.h"
#elif defined(SAPWOOD_ISA_NEON)
#include "simd/neon.h"
#else
#include "simd/avx2.h"
#endif

namespace sapwood::SAPWOOD_ISA {

// What was loaded before is loaded again where it is used after, and takes no register meanwhile. AVX-512 has enough of them.
#if defined(SAPWOOD_ISA_VNNI)
SAPWOOD_INLINE void forget_loads() {}
#else
SAPWOOD_INLINE void forget_loads() { asm volatile("" ::: "memory"); }
#endif

// Exact dot products of unsigned codes of `kBits` bits with signed 8-bit codes, four per 32-bit lane and step.
// Without a 4-way dot instruction pairs are added as int16 first: one pair is at most 2 * (2^bits - 1) * 127, so that
// 8, 4 or 2 of them fit for 4, 5 or 6 bits before they must be widened.
//
//   step 0   1   2   3 | 4 ...            kSums = 4
//   part  =  +   +   + | =
//   total            = |           +=     complete after the last step
//
// add_high() then adds 128 times the products with the high digits of a step, of which at most one in four is not zero.
template <int kBits>
struct Dot {
  static constexpr int kSums = kBits == 4 ? 8 : kBits == 5 ? 4 : 2;
  I total;
#if defined(SAPWOOD_HAS_DOT4)
  SAPWOOD_INLINE void add(int step, I codes, B activations) { total = dot4(step == 0 ? zero_int() : total, codes, activations); }
  SAPWOOD_INLINE void add_high(I codes, B digits) { total = add32(total, shift32_left<7>(dot4(zero_int(), codes, digits))); }
#else
  I part;
  SAPWOOD_INLINE void add(int step, I codes, B activations) {
    const I pairs = maddubs(codes, activations);
    part = step % kSums == 0 ? pairs : add16(part, pairs);
    keep(part);
    if (step % kSums != kSums - 1) return;
    const I widened = madd16(part, ones16());
    total = step < kSums ? widened : add32(total, widened);
  }
  SAPWOOD_INLINE void add_high(I codes, B digits) { total = add32(total, madd16(maddubs(codes, digits), all16(128))); }
#endif
};

// Exact dot products of signed 16-bit numbers, two per 32-bit lane and step; weights as load_widened_s8 gives them.
struct DotWide {
  I total;
  SAPWOOD_INLINE void add(int step, I weights, B activations) {
#if defined(SAPWOOD_HAS_DOT4)
    total = dot2(step == 0 ? zero_int() : total, weights, activations);
#else
    const I pairs = madd16(weights, activations);
    total = step == 0 ? pairs : add32(total, pairs);
    keep(total);
#endif
  }
};

}  // namespace sapwood::SAPWOOD_ISA
