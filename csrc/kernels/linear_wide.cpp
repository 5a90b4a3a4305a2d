// Owns: products of signed 8-bit weights (widened to 16 bits in registers) with 13-bit activations.
//
//   one group of a panel: 16 pairs of K; a vector holds 8 columns x 2 K:   [pair 0: c=0 | c=1][pair 1: ...] ...
//
// The widening load is shared by the rows of a tile, so one kernel serves every row count straight from the weight stream.
// A group's sum is at most 128 * 4095 * 32 < 2^24: exact in fp32. Invariant: one chain over ascending groups per output.
#include "kernels/tables.h"
#include "kernels/tiles.h"
#include "simd/panel.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

constexpr int kPrefetchBytes = 4352;
constexpr int64_t kActivationBudget = 256 << 10;

template <int R>
SAPWOOD_NOINLINE void tile(const WideBlock* block, int64_t groups, const ActivationView& input, int64_t row, float* out, int64_t stride, int64_t ahead) {
  const int16_t* codes = input.codes13 + row * input.padded_k;
  const float* scales = input.scale13 + row * input.groups;
  PF acc[R];
  for (int r = 0; r < R; r++) acc[r] = panel_zero();
  for (int64_t g = 0; g < groups; g++, block++, codes += kGroup) {
    if (ahead)
      for (int i = 0; i < int(sizeof *block); i += 64) prefetch(reinterpret_cast<const std::byte*>(block) + ahead + i);
    PanelDotWide dots[R];
SAPWOOD_UNROLL(16)
    for (int k = 0; k < 16; k++) {
      const PI weights = panel_load_widened_s8(block->codes + k * 32);
SAPWOOD_UNROLL(16)
      for (int r = 0; r < R; r++) dots[r].add(k, weights, *reinterpret_cast<const int16_t(*)[2]>(codes + r * input.padded_k + 2 * k));
    }
    const PF scale = panel_load_half(block->scale);
SAPWOOD_UNROLL(16)
    for (int r = 0; r < R; r++) acc[r] = fma(mul(to_float(dots[r].total), panel_all(scales[r * input.groups + g])), scale, acc[r]);
  }
  for (int r = 0; r < R; r++) panel_store(out + r * stride, acc[r]);
}

void linear(const LinearArgs& args) {
  const int64_t groups = args.input.groups;
  const auto* weights = reinterpret_cast<const WideBlock*>(args.weights);
  int block_rows = row_block(kActivationBudget, 2 * args.input.padded_k);
  if (block_rows > PanelOut::kMaxRows) block_rows = PanelOut::kMaxRows;
  alignas(64) static thread_local float spill[PanelOut::kMaxRows * kPanelColumns];
  for (int first = 0; first < args.rows; first += block_rows) {
    const int rows = args.rows - first < block_rows ? args.rows - first : block_rows;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel++) {
      const PanelOut to(args, panel, first, rows, spill);
      for_tiles<kHighestTile>(rows, [&](auto height, int row) {
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
