// Owns: products of unsigned 4-, 5- and 6-bit weights with 8-bit activations.
//
// Two ways through the same arithmetic:
//   few rows    `direct`: codes are widened in registers straight from the weight stream (bound by memory bandwidth)
//   many rows   a chunk of K of one panel is unpacked to L1 once, then every row tile runs over it (bound by arithmetic)
//
//   tile of R rows x 16 columns, one group:     acc[r][c]  (c = two halves of 8 columns)
//        activations  r: [a0 a1 a2 a3] broadcast to 8 columns
//        x codes      k: vector (k, c)          -> 8 int32 sums, exact
//        then, once per group, in fp32:         acc = acc + min * sum(a);  acc = acc + (dot * scale_a) * scale_w
//        or with an offset:                     acc = acc + (dot * scale_a - offset * sum(a)) * scale_w
//
// Invariant: each output is one chain over ascending groups, identical for both ways, every R and every split of K into
// chunks (between chunks the chain passes through memory unchanged).
#include "kernels/linear_codes.h"
#include "kernels/tables.h"
#include "kernels/tiles.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

constexpr int kDirectRows = 8, kDirectTile = 4, kChunkGroups = 24, kPrefetchBytes = 3840;
constexpr int64_t kActivationBudget = 256 << 10;

template <class S>
struct Panel {  // one unpacked group: 16 columns x 32 K
  float scale[S::kHalves][16];
  float min[S::kOffset ? 0 : 16];
  alignas(32) uint8_t codes[512];
};

struct Rows {  // a tile's activations, at its first row and the current group
  const int8_t* codes;
  const float *scale, *sum;
  int64_t code_stride, group_stride, sum_stride;
};

template <class S>
SAPWOOD_INLINE Rows rows_at(const ActivationView& v, int64_t row, int64_t group) {
  const float* sums = S::kHalves == 2 ? v.half_sum8 : v.sum8;
  return {v.codes8 + row * v.padded_k + group * kGroup, v.scale8 + row * v.groups + group,
          sums + (row * v.groups + group) * S::kHalves, v.padded_k, v.groups, v.groups * S::kHalves};
}

template <class S>
SAPWOOD_INLINE F fold(F acc, I dot, F scale, F min, float activation_scale, float activation_sum) {
  if constexpr (S::kOffset != 0) {
    const F shifted = fma(to_float(dot), all(activation_scale), mul(all(activation_sum), all(-float(S::kOffset))));
    return fma(shifted, scale, acc);
  }
  acc = fma(min, all(activation_sum), acc);
  return fma(mul(to_float(dot), all(activation_scale)), scale, acc);
}

template <class S, int kHighBits, int J>
SAPWOOD_INLINE void unpack_step(const Codes<kHighBits>& codes, uint8_t* out) {
  I first, second;
  read_codes<kHighBits, J, 0>(codes, first, second);
  store_int(out + J * 64, first), store_int(out + (J + 4) * 64, second);
  read_codes<kHighBits, J, 1>(codes, first, second);
  store_int(out + J * 64 + 32, first), store_int(out + (J + 4) * 64 + 32, second);
}

template <class S>
SAPWOOD_INLINE void unpack(const typename S::Block& block, int g, Panel<S>& panel) {
  for (int c8 = 0; c8 < 16; c8 += 8) {
    for (int half = 0; half < S::kHalves; half++) store(panel.scale[half] + c8, S::scale(block, g, half, c8));
    if constexpr (S::kOffset == 0) store(panel.min + c8, S::min(block, g, c8));
  }
  const auto& codes = S::codes(block, g);
  unpack_step<S, S::kBits - 4, 0>(codes, panel.codes);
  unpack_step<S, S::kBits - 4, 1>(codes, panel.codes);
  unpack_step<S, S::kBits - 4, 2>(codes, panel.codes);
  unpack_step<S, S::kBits - 4, 3>(codes, panel.codes);
}

template <class S, int R>
SAPWOOD_INLINE void fold_panel(const Panel<S>& panel, int half, const Dot<S::kBits> (&dots)[R][2], const Rows& rows, int g, F (&acc)[R][2]) {
  for (int c = 0; c < 2; c++) {
    const F scale = load(panel.scale[half] + 8 * c), min = S::kOffset ? zero() : load(panel.min + 8 * c);
SAPWOOD_UNROLL(8)
    for (int r = 0; r < R; r++) {
      const float sum = rows.sum[r * rows.sum_stride + g * S::kHalves + half];
      acc[r][c] = fold<S>(acc[r][c], dots[r][c].total, scale, min, rows.scale[r * rows.group_stride + g], sum);
    }
  }
}

// One row tile over `groups` unpacked groups. `next` is the weight stream that will be needed after this panel: its first
// tile fetches it, `next_bytes` per group, so that no panel starts with a stall.
template <class S, int R>
SAPWOOD_NOINLINE void tile(const Panel<S>* panel, int groups, Rows rows, float* out, int64_t stride, bool first, const std::byte* next, int next_bytes) {
  constexpr int kSteps = 8 / S::kHalves;
  F acc[R][2];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) acc[r][c] = first ? zero() : load(out + r * stride + 8 * c);
  for (int g = 0; g < groups; g++, panel++, rows.codes += kGroup) {
    if (next != nullptr) {
      for (int i = 0; i < next_bytes; i += 64) prefetch(next + i);
      next += next_bytes;
    }
SAPWOOD_UNROLL(2)
    for (int half = 0; half < S::kHalves; half++) {
      Dot<S::kBits> dots[R][2];
SAPWOOD_UNROLL(8)
      for (int k = 0; k < kSteps; k++) {
        const uint8_t* codes = panel->codes + (half * kSteps + k) * 64;
        const I w0 = load_int(codes), w1 = load_int(codes + 32);
SAPWOOD_UNROLL(8)
        for (int r = 0; r < R; r++) {
          const I a = broadcast4(rows.codes + r * rows.code_stride + (half * kSteps + k) * 4);
          dots[r][0].add(k, w0, a);
          dots[r][1].add(k, w1, a);
        }
      }
      fold_panel<S, R>(*panel, half, dots, rows, g, acc);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) store(out + r * stride + 8 * c, acc[r][c]);
}

// Steps J and J + 4 of column half C for every row of a direct tile; the two chains are added at the end of the group.
template <class S, int R, int J, int C>
SAPWOOD_INLINE void direct_step(const typename S::Block& block, int g, const Rows& rows, Dot<S::kBits> (&low)[R], Dot<S::kBits> (&high)[R]) {
  I first, second;
  read_codes<S::kBits - 4, J, C>(S::codes(block, g), first, second);
SAPWOOD_UNROLL(4)
  for (int r = 0; r < R; r++) {
    const int8_t* a = rows.codes + r * rows.code_stride + 4 * J;
    if constexpr (S::kBits == 4) {  // eight sums fit: one chain of eight steps
      low[r].add(2 * J, first, broadcast4(a));
      low[r].add(2 * J + 1, second, broadcast4(a + 16));
    } else {
      low[r].add(J, first, broadcast4(a));
      high[r].add(J, second, broadcast4(a + 16));
    }
  }
}

template <class S, int R, int C>
SAPWOOD_INLINE void direct_half(const typename S::Block& block, int g, const Rows& rows, F (&acc)[R][2]) {
  Dot<S::kBits> low[R], high[R];
  direct_step<S, R, 0, C>(block, g, rows, low, high);
  direct_step<S, R, 1, C>(block, g, rows, low, high);
  direct_step<S, R, 2, C>(block, g, rows, low, high);
  direct_step<S, R, 3, C>(block, g, rows, low, high);
  const F scale = S::scale(block, g, 0, 8 * C), min = S::min(block, g, 8 * C);
SAPWOOD_UNROLL(4)
  for (int r = 0; r < R; r++) {
    const float da = rows.scale[r * rows.group_stride];
    const float* sum = rows.sum + r * rows.sum_stride;
    if constexpr (S::kHalves == 2) {
      acc[r][C] = fold<S>(acc[r][C], low[r].total, scale, min, da, sum[0]);
      acc[r][C] = fold<S>(acc[r][C], high[r].total, S::scale(block, g, 1, 8 * C), min, da, sum[1]);
    } else {
      const I dot = S::kBits == 4 ? low[r].total : add32(low[r].total, high[r].total);
      acc[r][C] = fold<S>(acc[r][C], dot, scale, min, da, sum[0]);
    }
  }
}

template <class S, int R>
SAPWOOD_NOINLINE void direct(const typename S::Block* block, int64_t blocks, Rows rows, float* out, int64_t stride) {
  F acc[R][2];
  for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = zero();
  for (int64_t b = 0; b < blocks; b++, block++)
    for (int g = 0; g < S::kBlockGroups; g++) {
      const auto* ahead = reinterpret_cast<const std::byte*>(&S::codes(*block, g)) + kPrefetchBytes;
      for (size_t i = 0; i < sizeof *block / S::kBlockGroups; i += 64) prefetch(ahead + i);
      direct_half<S, R, 0>(*block, g, rows, acc);
      direct_half<S, R, 1>(*block, g, rows, acc);
      rows.codes += kGroup, rows.scale += 1, rows.sum += S::kHalves;
    }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) store(out + r * stride + 8 * c, acc[r][c]);
}

// All rows of one block over one panel, K in chunks that fit L1 after unpacking.
template <class S>
void unpacked_panel(const LinearArgs& args, const typename S::Block* blocks, int first_row, int rows, const PanelOut& to) {
  alignas(64) static thread_local Panel<S> scratch[kChunkGroups];
  const int64_t groups = args.input.groups;
  const int group_bytes = int(sizeof(*blocks) / S::kBlockGroups);
  for (int64_t g0 = 0; g0 < groups; g0 += kChunkGroups) {
    const int count = int(groups - g0 < kChunkGroups ? groups - g0 : kChunkGroups);
    for (int g = 0; g < count; g++) unpack<S>(blocks[(g0 + g) / S::kBlockGroups], int((g0 + g) % S::kBlockGroups), scratch[g]);
    const auto* next = reinterpret_cast<const std::byte*>(blocks) + (g0 + count) * group_bytes;
    for_tiles<6>(rows, [&](auto height, int row) {
      tile<S, height.value>(scratch, count, rows_at<S>(args.input, first_row + row, g0), to.out + row * to.stride, to.stride, g0 == 0,
                            row == 0 ? next : nullptr, group_bytes);
    });
  }
}

template <class S>
void linear(const LinearArgs& args) {
  const int64_t blocks_per_panel = args.input.groups / S::kBlockGroups;
  const auto* weights = reinterpret_cast<const typename S::Block*>(args.weights);
  int block_rows = row_block(kActivationBudget, args.input.padded_k);
  if (block_rows > PanelOut::kMaxRows) block_rows = PanelOut::kMaxRows;
  alignas(64) static thread_local float spill[PanelOut::kMaxRows * kPanelColumns];
  for (int first = 0; first < args.rows; first += block_rows) {
    const int rows = args.rows - first < block_rows ? args.rows - first : block_rows;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel++) {
      const auto* blocks = weights + panel * blocks_per_panel;
      const PanelOut to(args, panel, first, rows, spill);
      if (args.rows <= kDirectRows) {
        for_tiles<kDirectTile>(rows, [&](auto height, int row) {
          direct<S, height.value>(blocks, blocks_per_panel, rows_at<S>(args.input, row, 0), to.out + row * to.stride, to.stride);
        });
      } else {
        unpacked_panel<S>(args, blocks, first, rows, to);
      }
      to.finish();
    }
  }
}

}  // namespace

void fill_code_linears(KernelTable& table) {
  auto& f = table.linear;
  f[int(Layout::kU4Offset)] = linear<OffsetScheme<0>>;
  f[int(Layout::kU4Min)] = linear<MinScheme<0>>;
  f[int(Layout::kU4Super)] = linear<SuperScheme<0>>;
  f[int(Layout::kU5Offset)] = linear<OffsetScheme<1>>;
  f[int(Layout::kU5Min)] = linear<MinScheme<1>>;
  f[int(Layout::kU5Super)] = linear<SuperScheme<1>>;
  f[int(Layout::kU6Super)] = linear<SixScheme>;
}

}  // namespace sapwood::SAPWOOD_ISA
