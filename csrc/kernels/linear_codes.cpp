// Owns: products of unsigned 4-, 5- and 6-bit weights with 8-bit activations.
//
// Two ways through the same arithmetic:
//   few rows    codes are widened in registers straight from the weight stream (bound by memory bandwidth)
//   many rows   a chunk of K of one panel is unpacked to L1 once, then every row tile runs over it (bound by arithmetic)
//
//   tile of R rows x 16 columns, one group:     acc[r]
//        activations  r: [a0 a1 a2 a3] broadcast to the columns
//        x codes      of K step k, less the offset     -> sums, exact
//        x factor     of the activations' group        -> 16 numbers, rounded once
//        then, once per group, in fp32:         acc = acc + min * sum(a) where there is one;  acc = acc + dot * scale_w
//        where a row of the tile has a lead:    acc = acc + (high digit x codes of its K step x factor) * 128 scale_w
//   and at the end, once:                       out = acc * unit[r]
//
// Where the activations have a rest, its product is added by a second turn over the same groups, which begins with out / unit[r].
// Invariant: each output is one chain over ascending groups (of the rest after those of the first codes), identical for both ways,
// every R and every split of K into chunks (between chunks the chain passes through memory unchanged).
#include <utility>

#if defined(SAPWOOD_ISA_AMX)
#include <optional>

#include "kernels/amx.h"
#endif
#include "kernels/linear_codes.h"
#include "kernels/tables.h"
#include "kernels/tiles.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

constexpr int kStreamRows = 8, kStreamTile = 4, kChunkGroups = 24, kPrefetchBytes = 3840;
constexpr int64_t kActivationBudget = 384 << 10;

template <class S>
struct Panel {  // one unpacked group: 16 columns x 32 K
  float scale[S::kHalves][16];
  float min[S::kMin ? 16 : 0];
  alignas(64) uint8_t codes[512];
};

struct Rows {  // a tile's activations, at its first row and the current group
  const Group8* groups;
  const uint64_t* led;  // at the first group of the matrix
  const float* unit;
  int64_t stride, led_stride;
  SAPWOOD_INLINE const Group8& at(int r) const { return groups[r * stride]; }
};

SAPWOOD_INLINE Rows rows_at(const ActivationView& v, const Codes8& c, int64_t row, int64_t group) {
  return {c.groups + row * v.groups + group, c.led + row * v.led_words, c.unit + row, v.groups, v.led_words};
}

template <int kOffset>
SAPWOOD_INLINE int start_of(const DotStarts& starts, int half) {
  return kOffset == 8 ? starts.of8 : kOffset == 16 ? starts.of16 : starts.of32[half];
}

// What unpacked codes are less than those of the file. The tile unit multiplies signed bytes, so it gets codes less their offset.
#if defined(SAPWOOD_ISA_AMX)
template <class S>
constexpr int kUnpackedLess = S::kHalves == 1 ? S::kOffset : 0;
#else
template <class S>
constexpr int kUnpackedLess = 0;
#endif

template <class S, int... Ks>
SAPWOOD_INLINE void unpack_codes(const Codes<S::kHigh>& codes, uint8_t* out, std::integer_sequence<int, Ks...>) {
  (panel_store_int(out + Ks * 64, add_all8<-kUnpackedLess<S>>(read_codes<S::kHigh, Ks>(codes))), ...);
}

template <class S>
SAPWOOD_INLINE void unpack(const typename S::Block& block, int g, Panel<S>& panel) {
  for (int half = 0; half < S::kHalves; half++) panel_store(panel.scale[half], S::scale(block, g, half));
  if constexpr (S::kMin) panel_store(panel.min, S::min(block, g));
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
  SAPWOOD_INLINE PI codes() const { return codes(K); }
  SAPWOOD_INLINE PI codes(int step) const { return add_all8<kUnpackedLess<S>>(panel_load_int(panel_->codes + step * 64)); }
  SAPWOOD_INLINE const Panel<S>& panel() const { return *panel_; }
  SAPWOOD_INLINE PF scale(int half) const { return panel_load(panel_->scale[half]); }
  SAPWOOD_INLINE PF min() const {
    if constexpr (S::kMin) return panel_load(panel_->min);
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
  SAPWOOD_INLINE PI codes() const { return read_codes<S::kHigh, K>(S::codes(*block_, group_)); }
  SAPWOOD_INLINE PI codes(int step) const { return read_codes<S::kHigh>(S::codes(*block_, group_), step); }
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

// K step K of a group, the first of its half where kStep is 0.
template <class S, int K, int kStep, int R, class Reader>
SAPWOOD_INLINE void step(const Reader& reader, const Rows& rows, PanelDot (&dots)[R]) {
  const PI codes = reader.template codes<K>();
SAPWOOD_UNROLL(16)
  for (int r = 0; r < R; r++) {
    const auto& four = *reinterpret_cast<const int8_t(*)[4]>(rows.at(r).codes + 4 * K);
    if constexpr (kStep > 0) dots[r].add(codes, four);
    else if constexpr (S::kOffset == 0) dots[r].open(codes, four);
    else dots[r].open(codes, four, start_of<S::kOffset>(rows.at(r).starts, K / 4));
  }
}

// Bit 0: whether any of the tile's rows has a lead in `group`; the bits above it: in the groups that follow, up to a word's end.
template <int R>
SAPWOOD_INLINE uint64_t led_from(const Rows& rows, int64_t group) {
  uint64_t any = 0;
  for (int r = 0; r < R; r++) any |= rows.led[r * rows.led_stride + group / kLedGroups];
  return any >> group % kLedGroups;
}

// 128 times the products with the high digits, of the rows that have one; where it lies in the other half of the group, 0 is added.
// A branch for each row: on real activations less than half of the rows of such a tile have one.
template <class S, int kHalf, int R, class Reader>
SAPWOOD_INLINE void add_leads(const Reader& reader, const Rows& rows, PF (&acc)[R]) {
  const PF scale = mul(reader.scale(kHalf), panel_all(128.f));
SAPWOOD_UNROLL(16)
  for (int r = 0; r < R; r++) {
    const Group8& group = rows.at(r);
    if (group.high == 0) continue;
    const int high = S::kHalves == 1 || group.lead / 16 == kHalf ? group.high : 0;
    const uint32_t digits = uint32_t(uint8_t(high)) << 8 * (group.lead % 4);
    acc[r] = fma(PanelDot::lead<S::kOffset>(reader.codes(group.lead / 4), panel_broadcast4(&digits), high, group.factor), scale, acc[r]);
  }
}

// One scale's worth of a group: all of it, or half `kHalf` of it.
template <class S, int kHalf, int R, class Reader, int... Ks>
SAPWOOD_INLINE void half_group(const Reader& reader, const Rows& rows, bool led, PF (&acc)[R], std::integer_sequence<int, Ks...>) {
  constexpr int kFirst = kHalf * int(sizeof...(Ks));
  PanelDot dots[R];
  (step<S, kFirst + Ks, Ks>(reader, rows, dots), ...);
  const PF scale = reader.scale(kHalf), min = reader.min();
SAPWOOD_UNROLL(16)
  for (int r = 0; r < R; r++) {
    if constexpr (S::kMin) acc[r] = fma(min, panel_all(rows.at(r).sum), acc[r]);
    acc[r] = fma(dots[r].scaled(rows.at(r).factor), scale, acc[r]);
  }
  if (led) add_leads<S, kHalf>(reader, rows, acc);
}

struct Part {  // groups [first, first + count) of a matrix, and whether the activations' rest is being added
  int64_t first, count;
  bool rest, last;
};

template <int R>
SAPWOOD_INLINE void begin_rows(const Part& part, const Rows& rows, const float* out, int64_t stride, PF (&acc)[R]) {
  for (int r = 0; r < R; r++) {
    if (part.first == 0 && !part.rest) {
      acc[r] = panel_zero();
      prefetch(out + r * stride);  // a line that is not there when it is written stops the stores behind it
    } else {
      acc[r] = panel_load(out + r * stride);
      if (part.first == 0) acc[r] = mul(acc[r], panel_all(1.f / rows.unit[r]));
    }
  }
}

template <int R>
SAPWOOD_INLINE void end_rows(const Part& part, const Rows& rows, const PF (&acc)[R], float* out, int64_t stride) {
  for (int r = 0; r < R; r++) panel_store(out + r * stride, part.last ? mul(acc[r], panel_all(rows.unit[r])) : acc[r]);
}

template <class S, int R, class Reader>
SAPWOOD_NOINLINE void tile(Reader reader, const Part& part, Rows rows, float* out, int64_t stride) {
  using Steps = std::make_integer_sequence<int, 8 / S::kHalves>;
  PF acc[R];
  begin_rows(part, rows, out, stride, acc);
  uint64_t led = led_from<R>(rows, part.first);
  for (int64_t g = 0; g < part.count; g++, rows.groups++, led >>= 1) {
    if ((part.first + g) % kLedGroups == 0) led = led_from<R>(rows, part.first + g);
    reader.fetch_ahead();
    half_group<S, 0>(reader, rows, led & 1, acc, Steps());
    if constexpr (S::kHalves == 2) half_group<S, 1>(reader, rows, led & 1, acc, Steps());
    reader.advance();
  }
  end_rows(part, rows, acc, out, stride);
}

#if defined(SAPWOOD_ISA_AMX)

template <class S>
SAPWOOD_INLINE void multiply(const Panel<S>& panel, const Rows& rows, TileSums& sums) {
  TileUnit::multiply(rows.groups->codes, rows.stride * int64_t(sizeof(Group8)), reinterpret_cast<const int8_t*>(panel.codes), sums);
}

// What `half_group` does, with sums from the tile unit.
template <class S>
SAPWOOD_INLINE void fold(const TileSums& sums, const PanelReader<S>& reader, const Rows& rows, bool led, PF (&acc)[kTileRows]) {
  const PF scale = reader.scale(0), min = reader.min();
SAPWOOD_UNROLL(16)
  for (int r = 0; r < kTileRows; r++) {
    const Group8& group = rows.at(r);
    if constexpr (S::kMin) acc[r] = fma(min, panel_all(group.sum), acc[r]);
    acc[r] = fma(mul(to_float(panel_load_int(sums[r])), panel_all(group.factor.number)), scale, acc[r]);
  }
  asm volatile("" ::: "memory");  // factors are loaded again for leads: kept, they would take the registers of `acc`
  if (led) add_leads<S, 0>(reader, rows, acc);
}

// `tile` for 16 rows. While the vector unit folds a group, the tile unit multiplies the next.
template <class S>
SAPWOOD_NOINLINE void unit_tile(PanelReader<S> reader, const Part& part, Rows rows, float* out, int64_t stride) {
  PF acc[kTileRows];
  begin_rows(part, rows, out, stride, acc);
  alignas(64) TileSums sums[2];
  multiply<S>(reader.panel(), rows, sums[0]);
  uint64_t led = led_from<kTileRows>(rows, part.first);
  for (int64_t g = 0; g < part.count; g++, led >>= 1) {
    if ((part.first + g) % kLedGroups == 0) led = led_from<kTileRows>(rows, part.first + g);
    reader.fetch_ahead();
    const PanelReader<S> now = reader;
    const Rows rows_now = rows;
    reader.advance(), rows.groups++;
    if (g + 1 < part.count) multiply<S>(reader.panel(), rows, sums[(g + 1) % 2]);
    fold<S>(sums[g % 2], now, rows_now, led & 1, acc);
  }
  end_rows(part, rows, acc, out, stride);
}

#endif

// All rows of one block over one panel, K in chunks that fit L1 after unpacking.
template <class S>
void unpacked_panel(const LinearArgs& args, const Codes8& codes, bool rest, const typename S::Block* blocks, int first_row, int rows, const PanelOut& to) {
  alignas(64) static thread_local Panel<S> scratch[kChunkGroups];
  const int64_t groups = args.input.groups;
  const int group_bytes = int(sizeof(*blocks) / S::kBlockGroups);
  for (int64_t g0 = 0; g0 < groups; g0 += kChunkGroups) {
    const int count = int(groups - g0 < kChunkGroups ? groups - g0 : kChunkGroups);
    for (int g = 0; g < count; g++) unpack<S>(blocks[(g0 + g) / S::kBlockGroups], int((g0 + g) % S::kBlockGroups), scratch[g]);
    const auto* next = reinterpret_cast<const std::byte*>(blocks) + (g0 + count) * group_bytes;
    const Part part{g0, count, rest, g0 + count == groups};
    const auto run = [&](int row, auto&& tile) {
      const PanelReader<S> reader(scratch, row == 0 ? next : nullptr, group_bytes);
      tile(reader, part, rows_at(args.input, codes, first_row + row, g0), to.out + row * to.stride, to.stride);
    };
    int first = 0;
#if defined(SAPWOOD_ISA_AMX)
    if constexpr (S::kHalves == 1)
      for (; rows - first >= kTileRows; first += kTileRows) run(first, unit_tile<S>);
#endif
    for_tiles<kHighestTile>(rows - first, [&](auto height, int row) { run(first + row, tile<S, height.value, PanelReader<S>>); });
  }
}

// All rows of one block over one panel: the whole product with these codes, or (of the rest) added to what `to` holds.
template <class S>
void add_panel(const LinearArgs& args, const Codes8& codes, bool rest, const typename S::Block* blocks, int first_row, int rows, const PanelOut& to) {
  if (args.rows > kStreamRows) return unpacked_panel<S>(args, codes, rest, blocks, first_row, rows, to);
  for_tiles<kStreamTile>(rows, [&](auto height, int row) {
    const Part part{0, args.input.groups, rest, true};
    tile<S, height.value>(StreamReader<S>(blocks), part, rows_at(args.input, codes, row, 0), to.out + row * to.stride, to.stride);
  });
}

template <class S>
void linear(const LinearArgs& args) {
  const int64_t blocks_per_panel = args.input.groups / S::kBlockGroups;
  const auto* weights = reinterpret_cast<const typename S::Block*>(args.weights);
  int block_rows = row_block(kActivationBudget, args.input.groups * int64_t(sizeof(Group8)));
  if (block_rows > PanelOut::kMaxRows) block_rows = PanelOut::kMaxRows;
  alignas(64) static thread_local float spill[PanelOut::kMaxRows * kPanelColumns];
#if defined(SAPWOOD_ISA_AMX)
  std::optional<TileUnit> unit;
  if (S::kHalves == 1 && args.rows >= kTileRows) unit.emplace();
#endif
  for (int first = 0; first < args.rows; first += block_rows) {
    const int rows = args.rows - first < block_rows ? args.rows - first : block_rows;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel++) {
      const auto* blocks = weights + panel * blocks_per_panel;
      const PanelOut to(args, panel, first, rows, spill);
      add_panel<S>(args, args.input.first, false, blocks, first, rows, to);
      if (args.input.rest.groups != nullptr) add_panel<S>(args, args.input.rest, true, blocks, first, rows, to);
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
