// Owns: products of unsigned 4-, 5- and 6-bit weights with 8-bit activations.
//
// Two ways through the same arithmetic:
//   few rows    codes are widened in registers straight from the weight stream (bound by memory bandwidth)
//   many rows   a chunk of K of one panel is unpacked to L1 once, then every row tile runs over it (bound by arithmetic)
//
//   tile of R rows x 16 columns, one group:     acc[r][c]  (c = two halves of 8 columns)
//        activations  r: [a0 a1 a2 a3] broadcast to 8 columns
//        x codes      k: vector (k, c)          -> 8 int32 sums, exact
//        + 128 * high digit of the row's largest number x codes of its K step (Lead8)
//        then, once per group, in fp32:         acc = acc + min * sum(a);  acc = acc + (dot * scale_a) * scale_w
//        or with an offset:                     acc = acc + (dot * scale_a - offset * sum(a)) * scale_w
//
// Invariant: each output is one chain over ascending groups, identical for both ways, every R and every split of K into
// chunks (between chunks the chain passes through memory unchanged).
#include <utility>

#include "kernels/linear_codes.h"
#include "kernels/tables.h"
#include "kernels/tiles.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

constexpr int kStreamRows = 8, kStreamTile = 4, kChunkGroups = 24, kPrefetchBytes = 3840;
constexpr int64_t kActivationBudget = 256 << 10;

template <class S>
struct Panel {  // one unpacked group: 16 columns x 32 K
  float scale[S::kHalves][16];
  float min[S::kOffset ? 0 : 16];
  alignas(32) uint8_t codes[512];
};

struct Rows {  // a tile's activations, at its first row and the current group
  const int8_t* codes;
  const Lead8* lead;
  const float *scale, *sum;
  int64_t code_stride, group_stride, sum_stride;
};

template <class S>
SAPWOOD_INLINE Rows rows_at(const ActivationView& v, int64_t row, int64_t group) {
  const float* sums = S::kHalves == 2 ? v.half_sum8 : v.sum8;
  return {v.codes8 + row * v.padded_k + group * kGroup, v.lead8 + row * v.groups + group, v.scale8 + row * v.groups + group,
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

template <class S, int... Ks>
SAPWOOD_INLINE void unpack_codes(const Codes<S::kBits - 4>& codes, uint8_t* out, std::integer_sequence<int, Ks...>) {
  for (int c = 0; c < 2; c++) (store_int(out + Ks * 64 + c * 32, read_codes<S::kBits - 4, Ks>(codes, c)), ...);
}

template <class S>
SAPWOOD_INLINE void unpack(const typename S::Block& block, int g, Panel<S>& panel) {
  for (int c8 = 0; c8 < 16; c8 += 8) {
    for (int half = 0; half < S::kHalves; half++) store(panel.scale[half] + c8, S::scale(block, g, half, c8));
    if constexpr (S::kOffset == 0) store(panel.min + c8, S::min(block, g, c8));
  }
  unpack_codes<S>(S::codes(block, g), panel.codes, std::make_integer_sequence<int, 8>());
}

// A reader gives a tile the numbers of its current group: from an unpacked panel, or from the weight stream itself.
template <class S>
class PanelReader {
 public:
  // `next` is the stream that will be needed after this panel: the first row tile fetches it, `next_bytes` per group, so that
  // no panel starts with a stall.
  PanelReader(const Panel<S>* panel, const std::byte* next, int next_bytes) : panel_(panel), next_(next), next_bytes_(next_bytes) {}
  template <int K>
  SAPWOOD_INLINE I codes(int c) const { return load_int(panel_->codes + K * 64 + c * 32); }
  SAPWOOD_INLINE I codes(int step, int c) const { return load_int(panel_->codes + step * 64 + c * 32); }
  SAPWOOD_INLINE F scale(int half, int c) const { return load(panel_->scale[half] + 8 * c); }
  SAPWOOD_INLINE F min(int c) const {
    if constexpr (S::kOffset == 0) return load(panel_->min + 8 * c);
    return zero();
  }
  SAPWOOD_INLINE void fetch_ahead() {
    if (next_ == nullptr) return;
    for (int i = 0; i < next_bytes_; i += 64) prefetch(next_ + i);
    next_ += next_bytes_;
  }
  SAPWOOD_INLINE void advance() { panel_++; }

 private:
  const Panel<S>* panel_;
  const std::byte* next_;
  int next_bytes_;
};

template <class S>
class StreamReader {
 public:
  explicit StreamReader(const typename S::Block* block) : block_(block) {}
  template <int K>
  SAPWOOD_INLINE I codes(int c) const { return read_codes<S::kBits - 4, K>(S::codes(*block_, group_), c); }
  SAPWOOD_INLINE I codes(int step, int c) const { return read_codes<S::kBits - 4>(S::codes(*block_, group_), step, c); }
  SAPWOOD_INLINE F scale(int half, int c) const { return S::scale(*block_, group_, half, 8 * c); }
  SAPWOOD_INLINE F min(int c) const { return S::min(*block_, group_, 8 * c); }
  SAPWOOD_INLINE void fetch_ahead() {
    const auto* ahead = reinterpret_cast<const std::byte*>(&S::codes(*block_, group_)) + kPrefetchBytes;
    for (size_t i = 0; i < sizeof *block_ / S::kBlockGroups; i += 64) prefetch(ahead + i);
  }
  SAPWOOD_INLINE void advance() {
    if (S::kBlockGroups == 1 || ++group_ == S::kBlockGroups) block_++, group_ = 0;
  }

 private:
  const typename S::Block* block_;
  int group_ = 0;
};

template <int K, int kStep, int kBits, int R, class Reader>
SAPWOOD_INLINE void step(const Reader& reader, const Rows& rows, Dot<kBits> (&dots)[R][2]) {
  const I w0 = reader.template codes<K>(0), w1 = reader.template codes<K>(1);
SAPWOOD_UNROLL(8)
  for (int r = 0; r < R; r++) {
    const I a = broadcast4(rows.codes + r * rows.code_stride + 4 * K);
    dots[r][0].add(kStep, w0, a);
    dots[r][1].add(kStep, w1, a);
  }
}

// The high digit of each row's lead, where it lies in this part of the group.
template <class S, int kHalf, int R, class Reader>
SAPWOOD_INLINE void add_leads(const Reader& reader, const Rows& rows, int64_t g, Dot<S::kBits> (&dots)[R][2]) {
SAPWOOD_UNROLL(8)
  for (int r = 0; r < R; r++) {
    const Lead8 lead = rows.lead[r * rows.group_stride + g];
    const uint32_t here = S::kHalves == 1 || lead.step / 4 == kHalf ? lead.digits : 0;
    const I digits = broadcast4(&here);
    for (int c = 0; c < 2; c++) dots[r][c].add_high(reader.codes(lead.step, c), digits);
  }
}

// One scale's worth of a group: all of it, or half `kHalf` of it.
template <class S, int kHalf, int R, class Reader, int... Ks>
SAPWOOD_INLINE void half_group(const Reader& reader, const Rows& rows, int64_t g, F (&acc)[R][2], std::integer_sequence<int, Ks...>) {
  constexpr int kFirst = kHalf * int(sizeof...(Ks));
  Dot<S::kBits> dots[R][2];
  (step<kFirst + Ks, Ks>(reader, rows, dots), ...);
  add_leads<S, kHalf>(reader, rows, g, dots);
  for (int c = 0; c < 2; c++) {
    const F scale = reader.scale(kHalf, c), min = reader.min(c);
SAPWOOD_UNROLL(8)
    for (int r = 0; r < R; r++) {
      const float sum = rows.sum[r * rows.sum_stride + g * S::kHalves + kHalf];
      acc[r][c] = fold<S>(acc[r][c], dots[r][c].total, scale, min, rows.scale[r * rows.group_stride + g], sum);
    }
  }
}

template <class S, int R, class Reader>
SAPWOOD_NOINLINE void tile(Reader reader, int64_t groups, Rows rows, float* out, int64_t stride, bool first) {
  using Steps = std::make_integer_sequence<int, 8 / S::kHalves>;
  F acc[R][2];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) acc[r][c] = first ? zero() : load(out + r * stride + 8 * c);
  for (int64_t g = 0; g < groups; g++, rows.codes += kGroup) {
    reader.fetch_ahead();
    half_group<S, 0>(reader, rows, g, acc, Steps());
    if constexpr (S::kHalves == 2) half_group<S, 1>(reader, rows, g, acc, Steps());
    reader.advance();
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
      const PanelReader<S> reader(scratch, row == 0 ? next : nullptr, group_bytes);
      tile<S, height.value>(reader, count, rows_at<S>(args.input, first_row + row, g0), to.out + row * to.stride, to.stride, g0 == 0);
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
      if (args.rows <= kStreamRows) {
        for_tiles<kStreamTile>(rows, [&](auto height, int row) {
          tile<S, height.value>(StreamReader<S>(blocks), args.input.groups, rows_at<S>(args.input, row, 0), to.out + row * to.stride, to.stride, true);
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
