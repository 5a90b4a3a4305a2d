// Owns: products of signed 8-bit weights (widened to 16 bits in registers) with 13-bit activations.
//
//   one group of a panel: 16 pairs of K; a vector holds 8 columns x 2 K:   [pair 0: c=0 | c=1][pair 1: ...] ...
//
// The widening load is shared by the rows of a tile, so one kernel serves every row count straight from the weight stream.
// The tile unit multiplies bytes: there, 16 rows at a time have two digits of 7 bits, number = 128 * high + low, and a chunk of K of a panel
// is put into its order first.
//
// A group's sum is at most 128 * 4095 * 32 < 2^24: exact in fp32. Invariant: one chain over ascending groups per output.
#if defined(SAPWOOD_ISA_AMX)
#include <optional>
#include <vector>

#include "kernels/amx.h"
#endif
#include "kernels/tables.h"
#include "kernels/tiles.h"
#include "simd/panel.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

constexpr int kPrefetchBytes = 4352;
constexpr int64_t kActivationBudget = 256 << 10;

SAPWOOD_INLINE void prefetch_block(const WideBlock& block, int64_t ahead) {
  for (int i = 0; i < int(sizeof block); i += 64) prefetch(reinterpret_cast<const std::byte*>(&block) + ahead + i);
}

template <int R>
SAPWOOD_NOINLINE void tile(const WideBlock* block, int64_t groups, const ActivationView& input, int64_t row, float* out, int64_t stride, int64_t ahead) {
  const int16_t* codes = input.codes13 + row * input.padded_k;
  const float* scales = input.scale13 + row * input.groups;
  PF acc[R];
  for (int r = 0; r < R; r++) acc[r] = panel_zero();
  for (int64_t g = 0; g < groups; g++, block++, codes += kGroup) {
    if (ahead) prefetch_block(*block, ahead);
    PanelDotWide dots[R];
SAPWOOD_UNROLL(16)
    for (int k = 0; k < 16; k++) {
      const PI weights = panel_load_widened_s8(block->codes + k * 32);
SAPWOOD_UNROLL(16)
      for (int r = 0; r < R; r++) dots[r].add(k, weights, panel_broadcast4(codes + r * input.padded_k + 2 * k));
    }
    const PF scale = panel_load_half(block->scale);
SAPWOOD_UNROLL(16)
    for (int r = 0; r < R; r++) acc[r] = fma(mul(to_float(dots[r].total), panel_all(scales[r * input.groups + g])), scale, acc[r]);
  }
  for (int r = 0; r < R; r++) panel_store(out + r * stride, acc[r]);
}

#if defined(SAPWOOD_ISA_AMX)

constexpr int kChunkGroups = 32;

class Digits {  // of rows of 13-bit activations
 public:
  Digits(const ActivationView& input, int64_t first_row, int rows) : k_(input.padded_k) {
    const int64_t size = k_ * rows;
    memory().resize(size_t(2 * size));
    high_ = memory().data(), low_ = high_ + size;
    const int16_t* codes = input.codes13 + first_row * k_;
    for (int64_t i = 0; i < size; i++) {
      const int high = (codes[i] + 64) >> 7;
      high_[i] = int8_t(high), low_[i] = int8_t(codes[i] - high * 128);
    }
  }
  const int8_t* high(int row, int64_t group) const { return high_ + row * k_ + group * kGroup; }
  const int8_t* low(int row, int64_t group) const { return low_ + row * k_ + group * kGroup; }

 private:
  static std::vector<int8_t>& memory() {
    static thread_local std::vector<int8_t> bytes;
    return bytes;
  }
  int64_t k_;
  int8_t *high_, *low_;
};

struct UnitPanel {  // one group in the tile unit's order: 8 rows of 4 K x 16 columns
  alignas(64) int8_t codes[512];
  float scale[kPanelColumns];
  // Two pairs of K, column by column, become four of K.
  void unpack(const WideBlock& block) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int k = 0; k < 8; k++) panel_store_int(codes + k * 64, _mm512_permutexvar_epi16(order, panel_load_int(block.codes + k * 64)));
    panel_store(scale, panel_load_half(block.scale));
  }
};

// Groups [first, first + count) of 16 rows, added to what `out` holds where first > 0.
SAPWOOD_NOINLINE void unit_tile(const UnitPanel* panels, int64_t first, int64_t count, const Digits& digits, int row, const float* scales, int64_t groups, float* out, int64_t stride) {
  PF acc[kTileRows];
  for (int r = 0; r < kTileRows; r++) acc[r] = first == 0 ? panel_zero() : panel_load(out + r * stride);
  alignas(64) TileSums sums[2][2];
  const auto multiply = [&](int64_t g) {
    TileUnit::multiply(digits.high(row, first + g), digits.low(row, first + g), groups * kGroup, panels[g].codes, sums[g % 2]);
  };
  multiply(0);
  for (int64_t g = 0; g < count; g++) {
    if (g + 1 < count) multiply(g + 1);
    const PF scale = panel_load(panels[g].scale);
    const auto& [high, low] = sums[g % 2];
SAPWOOD_UNROLL(16)
    for (int r = 0; r < kTileRows; r++) {
      const PI total = _mm512_add_epi32(_mm512_slli_epi32(panel_load_int(high[r]), 7), panel_load_int(low[r]));
      acc[r] = fma(mul(to_float(total), panel_all(scales[r * groups + first + g])), scale, acc[r]);
    }
  }
  for (int r = 0; r < kTileRows; r++) panel_store(out + r * stride, acc[r]);
}

// `rows` rows, a multiple of 16, of one panel.
void unit_panel(const WideBlock* blocks, const ActivationView& input, const Digits& digits, int64_t first_row, int rows, const PanelOut& to) {
  alignas(64) static thread_local UnitPanel scratch[kChunkGroups];
  for (int64_t g0 = 0; g0 < input.groups; g0 += kChunkGroups) {
    const int64_t count = input.groups - g0 < kChunkGroups ? input.groups - g0 : kChunkGroups;
    for (int64_t g = 0; g < count; g++) {
      prefetch_block(blocks[g0 + g], input.groups * int64_t(sizeof(WideBlock)));
      scratch[g].unpack(blocks[g0 + g]);
    }
    for (int row = 0; row < rows; row += kTileRows)
      unit_tile(scratch, g0, count, digits, row, input.scale13 + (first_row + row) * input.groups, input.groups, to.out + row * to.stride, to.stride);
  }
}

#endif

void linear(const LinearArgs& args) {
  const int64_t groups = args.input.groups;
  const auto* weights = reinterpret_cast<const WideBlock*>(args.weights);
  int block_rows = row_block(kActivationBudget, 2 * args.input.padded_k);
  if (block_rows > PanelOut::kMaxRows) block_rows = PanelOut::kMaxRows;
  alignas(64) static thread_local float spill[PanelOut::kMaxRows * kPanelColumns];
  for (int first = 0; first < args.rows; first += block_rows) {
    const int rows = args.rows - first < block_rows ? args.rows - first : block_rows;
    int unit_rows = 0;
#if defined(SAPWOOD_ISA_AMX)
    unit_rows = rows / kTileRows * kTileRows;
    std::optional<TileUnit> unit;
    if (unit_rows > 0) unit.emplace();
    const Digits digits(args.input, first, unit_rows);
#endif
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel++) {
      const PanelOut to(args, panel, first, rows, spill);
#if defined(SAPWOOD_ISA_AMX)
      if (unit_rows > 0) unit_panel(weights + panel * groups, args.input, digits, first, unit_rows, to);
#endif
      for_tiles<kHighestTile>(rows - unit_rows, [&](auto height, int tile_row) {
        const int row = unit_rows + tile_row;
        const int64_t ahead = row ? 0 : args.rows <= kHighestTile ? kPrefetchBytes : groups * int64_t(sizeof(WideBlock));
        tile<height.value>(weights + panel * groups, groups, args.input, first + row, to.out + row * to.stride, to.stride, ahead);
      });
      to.finish();
    }
  }
}

}  // namespace

void fill_wide_linears(KernelTable& table) { table.linear[int(Layout::kS8)] = linear; }

}  // namespace sapwood::SAPWOOD_ISA
