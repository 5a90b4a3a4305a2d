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
#include "linear/codes8.h"

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

// Exact dot products of unsigned codes, each less an offset, with signed 8-bit activations, four per 32-bit lane and step:
//
//   total = start + sum of code * activation,      start = -offset * sum of activation  (nothing where there is no offset)
//
// Without a 4-way dot instruction pairs of products are added in 16 bits, two sums to a lane, and `start` has two halves (see
// find_starts). They may wrap on the way: what each comes to has 16 products of +-16 x 127 (8 of +-32 x 127 where the codes have 6
// bits; 16 of 15 x 127 without an offset), which fits. The instruction that then adds the two multiplies them by a factor without
// a second instruction, so a group's scale costs nothing.
//
// scaled() is the total times the factor, rounded once: also where it is multiplied as a float, because it has fewer than 24 bits.
// lead() is the same for one step whose activations are `high` in one place (as `digits` has it) and 0 in the others.
struct Dot {
#if defined(SAPWOOD_HAS_DOT4)
  I total;
  SAPWOOD_INLINE void open(I codes, B activations) { total = dot4(zero_int(), codes, activations); }
  SAPWOOD_INLINE void open(I codes, B activations, int start) { total = dot4(all32(start), codes, activations); }
  SAPWOOD_INLINE void add(I codes, B activations) { total = dot4(total, codes, activations); }
  SAPWOOD_INLINE F scaled(const Factor8& factor) const { return mul(to_float(total), all(factor.number)); }
  template <int kOffset>
  static SAPWOOD_INLINE F lead(I codes, B digits, int high, const Factor8& factor) {
    return mul(to_float(dot4(kOffset ? all32(-kOffset * high) : zero_int(), codes, digits)), all(factor.number));
  }
#else
  I part;
  SAPWOOD_INLINE void open(I codes, B activations) { part = maddubs(codes, activations), keep(part); }
  SAPWOOD_INLINE void open(I codes, B activations, int start) { part = add16(all32(start), maddubs(codes, activations)), keep(part); }
  SAPWOOD_INLINE void add(I codes, B activations) { part = add16(part, maddubs(codes, activations)), keep(part); }
  SAPWOOD_INLINE F scaled(const Factor8& factor) const { return to_float(madd16(part, broadcast4(factor.twice))); }
  template <int kOffset>
  static SAPWOOD_INLINE F lead(I codes, B digits, int high, const Factor8& factor) {
    I part = maddubs(codes, digits);
    if constexpr (kOffset > 0) part = add16(part, all32(uint16_t(-kOffset * high)));  // to one of a lane's two sums
    return to_float(madd16(part, broadcast4(factor.twice)));
  }
#endif
};

// What Dot begins with for each offset, and the sum of a group's 32 codes.
SAPWOOD_INLINE int find_starts(I codes, DotStarts& starts) {
#if defined(SAPWOOD_HAS_DOT4)
  int half[2];
  half_sums(codes, half);
  const int both = half[0] + half[1];
  starts = {-8 * both, -16 * both, {-32 * half[0], -32 * half[1]}};
  return both;
#else
  return pair_starts(codes, starts);
#endif
}

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
