// Owns: the tile unit (AMX-INT8): exact products of 16 rows of signed bytes with 16 columns of signed bytes.
//
//   tile A   16 rows x 32 bytes, a group of each row
//   tile B   8 rows x 64 bytes, row k: [column 0: e0 e1 e2 e3][column 1: e0 ...], the order that panels have anyway
//   tile C   16 rows x 16 sums of 32 bits, which go through memory to the vector unit
//
// A product and its way through memory take as long as the vector unit takes to fold the sums into floats; together four fifths of what
// it takes for everything. Half groups (6 bits) would gain nothing.
//
// The instructions are written out because the compiler's functions for them do not say what memory they touch.
#pragma once
#include <cstdint>
#include <cstring>

#include "simd/simd.h"

namespace sapwood::SAPWOOD_ISA {

constexpr int kTileRows = 16, kTileColumns = 16;
using TileSums = int32_t[kTileRows][kTileColumns];

// The unit is set up on this thread while one of these lives, which costs a tenth of a microsecond: not for rows that do not use it.
class TileUnit {
 public:
  TileUnit() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } setup;
    const auto shape = [&](int tile, int rows, int row_bytes) { setup.rows[tile] = uint8_t(rows), setup.row_bytes[tile] = uint16_t(row_bytes); };
    shape(0, kTileRows, 4 * kTileColumns), shape(1, kTileRows, 4 * kTileColumns);
    shape(2, kTileRows, kGroup), shape(3, kTileRows, kGroup);
    shape(4, kGroup / 4, 4 * kTileColumns);
    asm volatile("ldtilecfg %0" : : "m"(setup));
  }
  ~TileUnit() { asm volatile("tilerelease"); }
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;

  // sums[r][c] = sum over k of a[r * row_bytes + k] * b[k / 4][c][k % 4]
  static SAPWOOD_INLINE void multiply(const int8_t* a, int64_t row_bytes, const int8_t* b, TileSums& sums) {
    asm volatile(
        "tilezero %%tmm0\n\t"
        "tileloadd (%0,%1,1), %%tmm2\n\t"
        "tileloadd (%2,%3,1), %%tmm4\n\t"
        "tdpbssd %%tmm4, %%tmm2, %%tmm0\n\t"
        "tilestored %%tmm0, (%4,%3,1)"
        : : "r"(a), "r"(row_bytes), "r"(b), "r"(int64_t(4 * kTileColumns)), "r"(&sums) : "memory");
  }
  // The same for two matrices of activations that meet the same weights.
  static SAPWOOD_INLINE void multiply(const int8_t* first, const int8_t* second, int64_t row_bytes, const int8_t* b, TileSums (&sums)[2]) {
    asm volatile(
        "tilezero %%tmm0\n\t"
        "tilezero %%tmm1\n\t"
        "tileloadd (%3,%4,1), %%tmm4\n\t"
        "tileloadd (%0,%2,1), %%tmm2\n\t"
        "tileloadd (%1,%2,1), %%tmm3\n\t"
        "tdpbssd %%tmm4, %%tmm2, %%tmm0\n\t"
        "tdpbssd %%tmm4, %%tmm3, %%tmm1\n\t"
        "tilestored %%tmm0, (%5,%4,1)\n\t"
        "tilestored %%tmm1, (%6,%4,1)"
        : : "r"(first), "r"(second), "r"(row_bytes), "r"(b), "r"(int64_t(4 * kTileColumns)), "r"(&sums[0]), "r"(&sums[1]) : "memory");
  }
};

}  // namespace sapwood::SAPWOOD_ISA
