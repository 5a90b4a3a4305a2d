// Owns: how many rows are cut into register tiles, and how the last, partly valid panel is written.
// Invariant: a row's arithmetic is the same in every tile height.
#pragma once
#include "kernels/kernels.h"
#include "simd/simd.h"

namespace sapwood::SAPWOOD_ISA {

template <int n>
struct Height {
  static constexpr int value = n;
};

// The registers of a tile: R rows of integer sums, and weights; with 32 registers of 16 columns R can hide their latency.
#if defined(SAPWOOD_ISA_VNNI)
constexpr int kHighestTile = 12;
#else
constexpr int kHighestTile = 6;
#endif

// Calls f(Height<R>, first row) for tiles of at most kHighest rows that cover [0, rows): the highest tile as often as it fits.
template <int kHighest, class Run>
SAPWOOD_INLINE void for_tiles(int rows, Run&& f) {
#if defined(SAPWOOD_ISA_PORTABLE)
  constexpr int kMax = 1;
#else
  constexpr int kMax = kHighest;
#endif
  int row = 0;
  if constexpr (kMax >= 12) for (; rows - row >= 12; row += 12) f(Height<12>(), row);
  if constexpr (kMax >= 8) for (; rows - row >= 8; row += 8) f(Height<8>(), row);
  if constexpr (kMax >= 6) for (; rows - row >= 6; row += 6) f(Height<6>(), row);
  if constexpr (kMax >= 5) for (; rows - row >= 5; row += 5) f(Height<5>(), row);
  if constexpr (kMax >= 4) for (; rows - row >= 4; row += 4) f(Height<4>(), row);
  if constexpr (kMax >= 3) for (; rows - row >= 3; row += 3) f(Height<3>(), row);
  if constexpr (kMax >= 2) for (; rows - row >= 2; row += 2) f(Height<2>(), row);
  for (; rows - row >= 1; row += 1) f(Height<1>(), row);
}

// What tiles of all instruction sets divide into, or (the tile unit's) of this one.
#if defined(SAPWOOD_ISA_AMX)
constexpr int kRowMultiple = 16;
#else
constexpr int kRowMultiple = 12;
#endif

// Rows per pass over a panel, so that their activations stay in about `budget` bytes of L2; whole tiles, at least 48.
SAPWOOD_INLINE int row_block(int64_t budget, int64_t row_bytes) {
  const int64_t rows = budget / row_bytes / kRowMultiple * kRowMultiple;
  return int(rows < 48 ? 48 : rows);
}

// Where one panel's results go. A panel whose last columns are padding is computed into `spill` and copied.
class PanelOut {
 public:
  static constexpr int kMaxRows = 1024;
  PanelOut(const LinearArgs& args, int64_t panel, int first_row, int rows, float* spill)
      : final_(args.out + first_row * args.out_stride + panel * kPanelColumns), final_stride_(args.out_stride), rows_(rows) {
    const int64_t left = args.columns - panel * kPanelColumns;
    valid_ = left < kPanelColumns ? int(left) : kPanelColumns;
    whole_ = valid_ == kPanelColumns;
    out = whole_ ? final_ : spill;
    stride = whole_ ? final_stride_ : kPanelColumns;
  }
  void finish() const {
    if (whole_) return;
    for (int r = 0; r < rows_; r++) std::memcpy(final_ + r * final_stride_, out + r * stride, size_t(valid_) * sizeof(float));
  }

  float* out;
  int64_t stride;

 private:
  float* final_;
  int64_t final_stride_;
  int rows_, valid_;
  bool whole_;
};

}  // namespace sapwood::SAPWOOD_ISA
