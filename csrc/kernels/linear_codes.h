// Owns: how each packed layout of unsigned 4-, 5- and 6-bit codes is read: scales of a column half, and vectors of codes.
// Invariant: scale and minimum are exact in fp32 (11-bit significands times 6- or 8-bit integers), so it does not matter
//            whether a kernel reads the block directly or through an unpacked panel.
#pragma once
#include "linear/layout.h"
#include "simd/simd.h"

namespace sapwood::SAPWOOD_ISA {

// The codes of K step K (0..7) for column half c, widened to bytes; K is a compile-time constant because of the shifts.
template <int kHighBits, int K>
SAPWOOD_INLINE I read_codes(const Codes<kHighBits>& codes, int c) {
  constexpr int kNibble = K < 4 ? 0 : -4;
  I v = bit_and(shift16<kNibble>(load_int(codes.low + K % 4 * 64 + c * 32)), all8(15));
  if constexpr (kHighBits == 1) v = bit_or(v, bit_and(shift16<4 - K>(load_int(codes.high + c * 32)), all8(16)));
  if constexpr (kHighBits == 2) v = bit_or(v, bit_and(shift16<4 - K % 4 * 2>(load_int(codes.high + K / 4 * 64 + c * 32)), all8(48)));
  return v;
}

// The same for a K step that is known only when it runs.
template <int kHighBits>
SAPWOOD_INLINE I read_codes(const Codes<kHighBits>& codes, int step, int c) {
  I v = bit_and(shift16_right(load_int(codes.low + step % 4 * 64 + c * 32), step & 4), all8(15));
  if constexpr (kHighBits == 1) v = bit_or(v, bit_and(shift16<4>(shift16_right(load_int(codes.high + c * 32), step)), all8(16)));
  if constexpr (kHighBits == 2)
    v = bit_or(v, bit_and(shift16<4>(shift16_right(load_int(codes.high + step / 4 * 64 + c * 32), step % 4 * 2)), all8(48)));
  return v;
}

// A scheme: kBits; kHalves scales per group; kOffset > 0 where w = scale * (code - kOffset), 0 where a minimum is stored;
// kBlockGroups groups per block. scale() and min() give 8 columns from column `c8` on (0 or 8).
template <int kHighBits>
struct OffsetScheme {
  using Block = OffsetBlock<kHighBits>;
  static constexpr int kBits = 4 + kHighBits, kHalves = 1, kOffset = 8 << kHighBits, kBlockGroups = 1;
  static SAPWOOD_INLINE const Codes<kHighBits>& codes(const Block& b, int) { return b.codes; }
  static SAPWOOD_INLINE F scale(const Block& b, int, int, int c8) { return load_half(b.scale + c8); }
  static SAPWOOD_INLINE F min(const Block&, int, int) { return zero(); }
};
template <int kHighBits>
struct MinScheme {
  using Block = MinBlock<kHighBits>;
  static constexpr int kBits = 4 + kHighBits, kHalves = 1, kOffset = 0, kBlockGroups = 1;
  static SAPWOOD_INLINE const Codes<kHighBits>& codes(const Block& b, int) { return b.codes; }
  static SAPWOOD_INLINE F scale(const Block& b, int, int, int c8) { return load_half(b.scale + c8); }
  static SAPWOOD_INLINE F min(const Block& b, int, int c8) { return load_half(b.min + c8); }
};
template <int kHighBits>
struct SuperScheme {
  using Block = SuperBlock<kHighBits>;
  static constexpr int kBits = 4 + kHighBits, kHalves = 1, kOffset = 0, kBlockGroups = kSuperGroups;
  static SAPWOOD_INLINE const Codes<kHighBits>& codes(const Block& b, int g) { return b.codes[g]; }
  static SAPWOOD_INLINE F scale(const Block& b, int g, int, int c8) { return mul(load_half(b.scale + c8), load_u8(b.scales[g] + c8)); }
  static SAPWOOD_INLINE F min(const Block& b, int g, int c8) {
    return negate(mul(load_half(b.min + c8), load_u8(b.mins[g] + c8)));
  }
};
struct SixScheme {
  using Block = SixBlock;
  static constexpr int kBits = 6, kHalves = 2, kOffset = 32, kBlockGroups = kSuperGroups;
  static SAPWOOD_INLINE const Codes<2>& codes(const Block& b, int g) { return b.codes[g]; }
  static SAPWOOD_INLINE F scale(const Block& b, int g, int half, int c8) {
    return mul(load_half(b.scale + c8), load_s8(b.scales[g][half] + c8));
  }
  static SAPWOOD_INLINE F min(const Block&, int, int) { return zero(); }
};

}  // namespace sapwood::SAPWOOD_ISA
