// Owns: products of unquantised weights (fp16, bf16, fp32) with fp32 activations.
//
//   panel of 16 columns: [k = 0: 16 numbers][k = 1: 16 numbers] ...    acc[r] += w[k] * x[r][k]
//
// Invariant: each output is one chain of fused multiply-adds over ascending k.
#include "kernels/tables.h"
#include "kernels/tiles.h"
#include "simd/panel.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

constexpr int kPrefetchBytes = 2048;
constexpr int64_t kActivationBudget = 256 << 10;

struct HalfWeights {
  using Number = uint16_t;
  static SAPWOOD_INLINE PF read(const Number* p) { return panel_load_half(p); }
};
struct BfloatWeights {
  using Number = uint16_t;
  static SAPWOOD_INLINE PF read(const Number* p) { return panel_load_bfloat(p); }
};
struct FloatWeights {
  using Number = float;
  static SAPWOOD_INLINE PF read(const Number* p) { return panel_load(p); }
};

template <class W, int R>
SAPWOOD_NOINLINE void tile(const typename W::Number* w, int64_t k_count, const float* x, int64_t x_stride, float* out, int64_t stride) {
  PF acc[R];
  for (int r = 0; r < R; r++) acc[r] = panel_zero();
  for (int64_t k = 0; k < k_count; k++, w += kPanelColumns) {
    prefetch(reinterpret_cast<const std::byte*>(w) + kPrefetchBytes);
    const PF weights = W::read(w);
SAPWOOD_UNROLL(16)
    for (int r = 0; r < R; r++) acc[r] = fma(weights, panel_all(x[r * x_stride + k]), acc[r]);
  }
  for (int r = 0; r < R; r++) panel_store(out + r * stride, acc[r]);
}

template <class W>
void linear(const LinearArgs& args) {
  const auto* weights = reinterpret_cast<const typename W::Number*>(args.weights);
  const int64_t x_stride = args.input.padded_k;
  int block_rows = row_block(kActivationBudget, 4 * x_stride);
  if (block_rows > PanelOut::kMaxRows) block_rows = PanelOut::kMaxRows;
  alignas(64) static thread_local float spill[PanelOut::kMaxRows * kPanelColumns];
  for (int first = 0; first < args.rows; first += block_rows) {
    const int rows = args.rows - first < block_rows ? args.rows - first : block_rows;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel++) {
      const PanelOut to(args, panel, first, rows, spill);
      for_tiles<kHighestTile>(rows, [&](auto height, int row) {
        tile<W, height.value>(weights + panel * args.k * kPanelColumns, args.k, args.input.values + (first + row) * x_stride, x_stride,
                              to.out + row * to.stride, to.stride);
      });
      to.finish();
    }
  }
}

}  // namespace

void fill_float_linears(KernelTable& table) {
  table.linear[int(Layout::kF16)] = linear<HalfWeights>;
  table.linear[int(Layout::kBF16)] = linear<BfloatWeights>;
  table.linear[int(Layout::kF32)] = linear<FloatWeights>;
}

}  // namespace sapwood::SAPWOOD_ISA
