// Owns: products of unsigned 4-, 5- and 6-bit weights with 8-bit activations.
//
// Two ways through the same arithmetic:
//   few rows    codes are widened in registers straight from the weight stream (bound by memory bandwidth)
//   many rows   a chunk of K of one panel is unpacked to L1 once, then every row tile runs over it (bound by arithmetic)
//
//   tile of R rows x 16 columns, one group:     acc[r]
//        activations  r: [a0 a1 a2 a3] broadcast to the columns
//        x codes      of K step k                -> 16 int32 sums, exact
//        + 128 * high digits of the rows' leads x codes of their K steps, where any row of the tile has one (Lead8)
//        then, once per group, in fp32:         acc = acc + min * sum(a);  acc = acc + (dot * scale_a) * scale_w
//        or with an offset:                     acc = acc + (dot * scale_a - offset * sum(a)) * scale_w
//
// Where the activations have a rest, its product is added by a second turn over the same groups.
// Invariant: each output is one chain over ascending groups (of the rest after those of the first codes), identical for both ways, every R and every split of K into
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
  alignas(64) uint8_t codes[512];
};

struct Rows {  // a tile's activations, at its first row and the current group
  const int8_t* codes;
  const Lead8* lead;
  const uint64_t* led;  // at the first group of the matrix
  const float *scale, *sum;
  int64_t code_stride, group_stride, sum_stride, led_stride;
};

template <class S>
SAPWOOD_INLINE Rows rows_at(const ActivationView& v, const Codes8& codes, int64_t row, int64_t group) {
  const float* sums = S::kHalves == 2 ? codes.half_sum : codes.sum;
  return {codes.codes + row * v.padded_k + group * kGroup, codes.lead + row * v.groups + group, codes.led + row * v.led_words,
          codes.scale + row * v.groups + group, sums + (row * v.groups + group) * S::kHalves, v.padded_k, v.groups, v.groups * S::kHalves, v.led_words};
}

template <class S>
SAPWOOD_INLINE PF fold(PF acc, PI dot, PF scale, PF min, float activation_scale, float activation_sum) {
  if constexpr (S::kOffset != 0) {
    const PF shifted = fma(to_float(dot), panel_all(activation_scale), panel_all(activation_sum * -float(S::kOffset)));
    return fma(shifted, scale, acc);
  }
  acc = fma(min, panel_all(activation_sum), acc);
  return fma(mul(to_float(dot), panel_all(activation_scale)), scale, acc);
}

template <class S, int... Ks>
SAPWOOD_INLINE void unpack_codes(const Codes<S::kBits - 4>& codes, uint8_t* out, std::integer_sequence<int, Ks...>) {
  (panel_store_int(out + Ks * 64, read_codes<S::kBits - 4, Ks>(codes)), ...);
}

template <class S>
SAPWOOD_INLINE void unpack(const typename S::Block& block, int g, Panel<S>& panel) {
  for (int half = 0; half < S::kHalves; half++) panel_store(panel.scale[half], S::scale(block, g, half));
  if constexpr (S::kOffset == 0) panel_store(panel.min, S::min(block, g));
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
  SAPWOOD_INLINE PI codes() const { return panel_load_int(panel_->codes + K * 64); }
  SAPWOOD_INLINE PI codes(int step) const { return panel_load_int(panel_->codes + step * 64); }
  SAPWOOD_INLINE PF scale(int half) const { return panel_load(panel_->scale[half]); }
  SAPWOOD_INLINE PF min() const {
    if constexpr (S::kOffset == 0) return panel_load(panel_->min);
    return panel_zero();
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
  SAPWOOD_INLINE PI codes() const { return read_codes<S::kBits - 4, K>(S::codes(*block_, group_)); }
  SAPWOOD_INLINE PI codes(int step) const { return read_codes<S::kBits - 4>(S::codes(*block_, group_), step); }
  SAPWOOD_INLINE PF scale(int half) const { return S::scale(*block_, group_, half); }
  SAPWOOD_INLINE PF min() const { return S::min(*block_, group_); }
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
SAPWOOD_INLINE void step(const Reader& reader, const Rows& rows, PanelDot<kBits> (&dots)[R]) {
  const PI codes = reader.template codes<K>();
SAPWOOD_UNROLL(16)
  for (int r = 0; r < R; r++) dots[r].add(kStep, codes, *reinterpret_cast<const int8_t(*)[4]>(rows.codes + r * rows.code_stride + 4 * K));
}

// Bit 0: whether any of the tile's rows has a lead in `group`; the bits above it: in the groups that follow, up to a word's end.
template <int R>
SAPWOOD_INLINE uint64_t led_from(const Rows& rows, int64_t group) {
  uint64_t any = 0;
  for (int r = 0; r < R; r++) any |= rows.led[r * rows.led_stride + group / kLedGroups];
  return any >> group % kLedGroups;
}

// The high digit of each row's lead, where it lies in this part of the group.
template <class S, int kHalf, int R, class Reader>
SAPWOOD_INLINE void add_leads(const Reader& reader, const Rows& rows, int64_t g, PanelDot<S::kBits> (&dots)[R]) {
SAPWOOD_UNROLL(16)
  for (int r = 0; r < R; r++) {
    const Lead8* lead = rows.lead + r * rows.group_stride + g;
    if constexpr (S::kHalves == 1) {
      dots[r].add_high(reader.codes(lead->step), panel_broadcast4(&lead->digits));
    } else {
      const uint32_t here = lead->step / 4 == kHalf ? lead->digits : 0;
      dots[r].add_high(reader.codes(lead->step), panel_broadcast4(&here));
    }
  }
}

// One scale's worth of a group: all of it, or half `kHalf` of it.
template <class S, int kHalf, int R, class Reader, int... Ks>
SAPWOOD_INLINE void half_group(const Reader& reader, const Rows& rows, int64_t g, bool led, PF (&acc)[R], std::integer_sequence<int, Ks...>) {
  constexpr int kFirst = kHalf * int(sizeof...(Ks));
  PanelDot<S::kBits> dots[R];
  (step<kFirst + Ks, Ks>(reader, rows, dots), ...);
  if (led) add_leads<S, kHalf>(reader, rows, g, dots);
  const PF scale = reader.scale(kHalf), min = reader.min();
SAPWOOD_UNROLL(16)
  for (int r = 0; r < R; r++) {
    const float sum = rows.sum[r * rows.sum_stride + g * S::kHalves + kHalf];
    acc[r] = fold<S>(acc[r], dots[r].total, scale, min, rows.scale[r * rows.group_stride + g], sum);
  }
}

template <class S, int R, class Reader>
SAPWOOD_NOINLINE void tile(Reader reader, bool fresh, int64_t first, int64_t groups, Rows rows, float* out, int64_t stride) {
  using Steps = std::make_integer_sequence<int, 8 / S::kHalves>;
  PF acc[R];
  for (int r = 0; r < R; r++) acc[r] = fresh ? panel_zero() : panel_load(out + r * stride);
  if (fresh)
    for (int r = 0; r < R; r++) prefetch(out + r * stride);  // a line that is not there when it is written stops the stores behind it
  uint64_t led = led_from<R>(rows, first);
  for (int64_t g = 0; g < groups; g++, rows.codes += kGroup, led >>= 1) {
    if ((first + g) % kLedGroups == 0) led = led_from<R>(rows, first + g);
    reader.fetch_ahead();
    half_group<S, 0>(reader, rows, g, led & 1, acc, Steps());
    if constexpr (S::kHalves == 2) half_group<S, 1>(reader, rows, g, led & 1, acc, Steps());
    reader.advance();
  }
  for (int r = 0; r < R; r++) panel_store(out + r * stride, acc[r]);
}

// All rows of one block over one panel, K in chunks that fit L1 after unpacking.
template <class S>
void unpacked_panel(const LinearArgs& args, const Codes8& codes, bool fresh, const typename S::Block* blocks, int first_row, int rows, const PanelOut& to) {
  alignas(64) static thread_local Panel<S> scratch[kChunkGroups];
  const int64_t groups = args.input.groups;
  const int group_bytes = int(sizeof(*blocks) / S::kBlockGroups);
  for (int64_t g0 = 0; g0 < groups; g0 += kChunkGroups) {
    const int count = int(groups - g0 < kChunkGroups ? groups - g0 : kChunkGroups);
    for (int g = 0; g < count; g++) unpack<S>(blocks[(g0 + g) / S::kBlockGroups], int((g0 + g) % S::kBlockGroups), scratch[g]);
    const auto* next = reinterpret_cast<const std::byte*>(blocks) + (g0 + count) * group_bytes;
    for_tiles<kHighestTile>(rows, [&](auto height, int row) {
      const PanelReader<S> reader(scratch, row == 0 ? next : nullptr, group_bytes);
      tile<S, height.value>(reader, fresh && g0 == 0, g0, count, rows_at<S>(args.input, codes, first_row + row, g0), to.out + row * to.stride, to.stride);
    });
  }
}

// All rows of one block over one panel: the whole product with these codes, or (not `fresh`) added to what `to` holds.
template <class S>
void add_panel(const LinearArgs& args, const Codes8& codes, bool fresh, const typename S::Block* blocks, int first_row, int rows, const PanelOut& to) {
  if (args.rows > kStreamRows) return unpacked_panel<S>(args, codes, fresh, blocks, first_row, rows, to);
  for_tiles<kStreamTile>(rows, [&](auto height, int row) {
    tile<S, height.value>(StreamReader<S>(blocks), fresh, 0, args.input.groups, rows_at<S>(args.input, codes, row, 0), to.out + row * to.stride, to.stride);
  });
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
      add_panel<S>(args, args.input.first, true, blocks, first, rows, to);
      if (args.input.rest.codes != nullptr) add_panel<S>(args, args.input.rest, false, blocks, first, rows, to);
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
