// Owns: the vector functions that kernels share, so that every path (decode, prefill, cascade) takes the same bits.
// Invariant: built only from the exact operations of simd.h: the same result in every lane and on every instruction set.
#pragma once
#include "simd/simd.h"

namespace sapwood::SAPWOOD_ISA {

// e^x with a relative error below 2e-7; exactly 0 below -87 (and for NaN), at most e^88 above 88.
//   x = n ln2 + r, |r| <= ln2 / 2;  e^x = 2^n * polynomial(r)
// In place and of several vectors at once, because the steps of one wait for each other.
template <int count>
SAPWOOD_INLINE void exp(F (&x)[count]) {
  F r[count], p[count];
SAPWOOD_UNROLL(4)
  for (int i = 0; i < count; i++) {
    const F bounded = max(min(x[i], all(88.f)), all(-87.f));
    const F n = nearest(mul(bounded, all(1.44269504f)));
    r[i] = fnma(n, all(0.693145752f), bounded);
    r[i] = fnma(n, all(1.42860677e-6f), r[i]);
    x[i] = zero_below(x[i], power_of_two(n), all(-87.f));
    p[i] = all(1.f / 5040);
  }
SAPWOOD_UNROLL(7)
  for (float factor : {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f})
SAPWOOD_UNROLL(4)
    for (int i = 0; i < count; i++) p[i] = fma(p[i], r[i], all(factor));
SAPWOOD_UNROLL(4)
  for (int i = 0; i < count; i++) x[i] = mul(p[i], x[i]);
}

SAPWOOD_INLINE F exp(F x) {
  F one[1] = {x};
  exp(one);
  return one[0];
}

SAPWOOD_INLINE float exp(float x) {
  float lanes8[8];
  store(lanes8, exp(all(x)));
  return lanes8[0];
}

SAPWOOD_INLINE F sigmoid(F x) { return div(all(1.f), add(all(1.f), exp(negate(x)))); }

// x * sigmoid(x); NaN stays NaN because x is a factor.
SAPWOOD_INLINE F silu(F x) { return mul(x, sigmoid(x)); }

// 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x * sigmoid(2u): no cancellation for small x.
SAPWOOD_INLINE F gelu_tanh(F x) {
  const F cube = mul(mul(x, x), x);
  const F u2 = mul(fma(cube, all(0.044715f), x), all(1.5957691216f));
  return mul(x, sigmoid(u2));
}

// tanh(x) = 2 sigmoid(2x) - 1.
SAPWOOD_INLINE F tanh(F x) { return sub(mul(all(2.f), sigmoid(mul(all(2.f), x))), all(1.f)); }

}  // namespace sapwood::SAPWOOD_ISA
