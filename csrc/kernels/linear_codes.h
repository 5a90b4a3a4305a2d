// Owns: how each packed layout of unsigned 4-, 5- and 6-bit codes is read: scales of a column half, and vectors of codes.
// Invariant: scales, and the minima of 4 bits, are exact in fp32 (11-bit significands times 6- or 8-bit integers); the minima of
//            5 bits are rounded once. So it does not matter whether a kernel reads the block directly or through an unpacked panel.
#pragma once
#include "linear/layout.h"
#include "simd/panel.h"

namespace sapwood::SAPWOOD_ISA {

// The codes of K step K (0..7), widened to bytes; K is a compile-time constant because of the shifts.
template <int kHighBits, int K>
SAPWOOD_INLINE PI read_codes(const Codes<kHighBits>& codes) {
  constexpr int kNibble = K < 4 ? 0 : -4;
  PI v = and_all8(shift16<kNibble>(panel_load_int(codes.low + K % 4 * 64)), 15);
  if constexpr (kHighBits == 1) v = bit_or(v, and_all8(shift16<4 - K>(panel_load_int(codes.high)), 16));
  if constexpr (kHighBits == 2) v = bit_or(v, and_all8(shift16<4 - K % 4 * 2>(panel_load_int(codes.high + K / 4 * 64)), 48));
  return v;
}

// The same for a K step that is known only when it runs.
template <int kHighBits>
SAPWOOD_INLINE PI read_codes(const Codes<kHighBits>& codes, int step) {
  PI v = and_all8(shift16_right(panel_load_int(codes.low + step % 4 * 64), step & 4), 15);
  if constexpr (kHighBits == 1) v = bit_or(v, and_all8(shift16<4>(shift16_right(panel_load_int(codes.high), step)), 16));
  if constexpr (kHighBits == 2)
    v = bit_or(v, and_all8(shift16<4>(shift16_right(panel_load_int(codes.high + step / 4 * 64), step % 4 * 2)), 48));
  return v;
}

// A scheme: w = scale * (code - kOffset) + (kMin: a minimum); kHalves scales per group; kBlockGroups groups per block.
// Codes of 5 bits have an offset also where the file stores a minimum, which is then that of code 16: their sums would not fit 16 bits.
template <int kOffset>
SAPWOOD_INLINE PF min_of_offset(PF min, PF scale) {
  if constexpr (kOffset == 0) return min;
  return fma(scale, panel_all(float(kOffset)), min);
}

template <int kHighBits>
struct OffsetScheme {
  using Block = OffsetBlock<kHighBits>;
  static constexpr int kHigh = kHighBits, kHalves = 1, kOffset = 8 << kHighBits, kBlockGroups = 1;
  static constexpr bool kMin = false;
  static SAPWOOD_INLINE const Codes<kHighBits>& codes(const Block& b, int) { return b.codes; }
  static SAPWOOD_INLINE PF scale(const Block& b, int, int) { return panel_load_half(b.scale); }
  static SAPWOOD_INLINE PF min(const Block&, int) { return panel_zero(); }
};
template <int kHighBits>
struct MinScheme {
  using Block = MinBlock<kHighBits>;
  static constexpr int kHigh = kHighBits, kHalves = 1, kOffset = 16 * kHighBits, kBlockGroups = 1;
  static constexpr bool kMin = true;
  static SAPWOOD_INLINE const Codes<kHighBits>& codes(const Block& b, int) { return b.codes; }
  static SAPWOOD_INLINE PF scale(const Block& b, int, int) { return panel_load_half(b.scale); }
  static SAPWOOD_INLINE PF min(const Block& b, int) { return min_of_offset<kOffset>(panel_load_half(b.min), panel_load_half(b.scale)); }
};
template <int kHighBits>
struct SuperScheme {
  using Block = SuperBlock<kHighBits>;
  static constexpr int kHigh = kHighBits, kHalves = 1, kOffset = 16 * kHighBits, kBlockGroups = kSuperGroups;
  static constexpr bool kMin = true;
  static SAPWOOD_INLINE const Codes<kHighBits>& codes(const Block& b, int g) { return b.codes[g]; }
  static SAPWOOD_INLINE PF scale(const Block& b, int g, int) { return mul(panel_load_half(b.scale), panel_load_u8(b.scales[g])); }
  static SAPWOOD_INLINE PF min(const Block& b, int g) {
    return min_of_offset<kOffset>(negate(mul(panel_load_half(b.min), panel_load_u8(b.mins[g]))), scale(b, g, 0));
  }
};
struct SixScheme {
  using Block = SixBlock;
  static constexpr int kHigh = 2, kHalves = 2, kOffset = 32, kBlockGroups = kSuperGroups;
  static constexpr bool kMin = false;
  static SAPWOOD_INLINE const Codes<2>& codes(const Block& b, int g) { return b.codes[g]; }
  static SAPWOOD_INLINE PF scale(const Block& b, int g, int half) {
    return mul(panel_load_half(b.scale), panel_load_s8(b.scales[g][half]));
  }
  static SAPWOOD_INLINE PF min(const Block&, int) { return panel_zero(); }
};

}  // namespace sapwood::SAPWOOD_ISA
