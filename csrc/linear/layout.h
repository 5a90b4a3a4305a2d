// Owns: how packed weights lie in memory. Plain structs shared by the packers and by every kernel.
// Invariant: a panel is 16 output columns; for each panel the blocks of all K groups follow one another, so that one panel is
// one sequential stream. Packing keeps every bit of the source: w = scale * code (+ minimum), nothing is rounded again.
//
// Codes of one group (32 K elements x 16 columns). One 32-byte vector holds 8 columns x 4 consecutive K elements:
//
//        K step k (4 elements)      vector (k, c), c = column half        bytes inside a vector
//   0    [ k=0 c=0 | k=0 c=1 ]                                           column 8c+0: e0 e1 e2 e3
//   64   [ k=1 c=0 | k=1 c=1 ]                                           column 8c+1: e0 e1 e2 e3
//   ...                                                                  ...
//
// 4 bits:  low[j*64 + c*32 + i] holds step j in its low nibble and step j+4 in its high nibble (j = 0..3).
// 5th bit: high[c*32 + i], bit k belongs to step k.
// 6 bits:  high[(k/4)*64 + c*32 + i], bits 2*(k%4) and the next one belong to step k.
// 8 bits:  8 columns x 2 K elements per 16 bytes, in the order (pair, c), because the product is taken in 16 bits.
#pragma once
#include <cstdint>

#include "linear/codes8.h"

namespace sapwood {

constexpr int kPackedVersion = 1;  // raise it whenever a layout changes: packed weights are kept on disk
constexpr int kPanelColumns = 16, kSuperGroups = 8;

enum class Layout : uint8_t {
  kU4Offset, kU4Min, kU4Super, kU5Offset, kU5Min, kU5Super, kU6Super, kS8, kF16, kBF16, kF32,
};
constexpr int kLayoutCount = 11;

template <int kHighBits>
struct Codes {
  uint8_t low[256];
  uint8_t high[64 * kHighBits];
};
template <>
struct Codes<0> {
  uint8_t low[256];
};

template <int kHighBits>
struct OffsetBlock {  // Q4_0, Q5_0: w = scale * (code - 2^(bits-1))
  uint16_t scale[16];
  Codes<kHighBits> codes;
};
template <int kHighBits>
struct MinBlock {  // Q4_1, Q5_1: w = scale * code + min
  uint16_t scale[16], min[16];
  Codes<kHighBits> codes;
};
template <int kHighBits>
struct SuperBlock {  // Q4_K, Q5_K: 8 groups; w = (scale * scales[g]) * code - (min * mins[g])
  uint16_t scale[16], min[16];
  uint8_t scales[kSuperGroups][16], mins[kSuperGroups][16];
  Codes<kHighBits> codes[kSuperGroups];
};
struct SixBlock {  // Q6_K: 8 groups of two halves of 16; w = (scale * scales[g][half]) * (code - 32)
  uint16_t scale[16];
  int8_t scales[kSuperGroups][2][16];
  Codes<2> codes[kSuperGroups];
};
struct WideBlock {  // Q8_0: w = scale * code, codes signed
  uint16_t scale[16];
  int8_t codes[512];
};

}  // namespace sapwood
