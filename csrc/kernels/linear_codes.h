// Owns: how each packed layout of unsigned 4-, 5- and 6-bit codes is read: scales of a column half, and vectors of codes.
// Invariant: scale and minimum are exact in fp32 (11-bit significands times 6- or 8-bit integers), so it does not matter
//            whether a kernel reads the block directly or through an unpacked panel.
#pragma once
#include "linear/layout.h"
#include "simd/simd.h"

namespace sapwood::SAPWOOD_ISA {

// The codes of K steps j and j + 4 for column half c, widened to bytes. J and C are compile-time constants (shift counts).
template <int kHighBits, int J, int C>
SAPWOOD_INLINE void read_codes(const Codes<kHighBits>& codes, I& first, I& second) {
  const I packed = load_int(codes.low + J * 64 + C * 32), low = all8(15);
  first = bit_and(packed, low);
  second = bit_and(shift16<-4>(packed), low);
  if constexpr (kHighBits == 1) {
    const I plane = load_int(codes.high + C * 32), bit = all8(16);
    first = bit_or(first, bit_and(shift16<4 - J>(plane), bit));
    second = bit_or(second, bit_and(shift16<-J>(plane), bit));
  } else if constexpr (kHighBits == 2) {
    const I bits = all8(48);
    first = bit_or(first, bit_and(shift16<4 - 2 * J>(load_int(codes.high + C * 32)), bits));
    second = bit_or(second, bit_and(shift16<4 - 2 * J>(load_int(codes.high + 64 + C * 32)), bits));
  }
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
