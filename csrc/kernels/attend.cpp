// Owns: attention of query vectors over one chunk of the paged KV pool, and the fold of chunk partials.
//
//   page of one kv head (16 tokens):   K  [head_dim][16]      q . K: a vector of K is 16 tokens of one dimension
//                                      V  [16][padded_dim]    p . V: a vector of V is 16 dimensions of one token
//   both are the same small product    out[i][0..16) = sum_k a[i][k] * b[k][0..16)         (`multiply` below)
//
//   chunk = 8 pages -> partial (m, l, o) of each vector:  m = max s,  l = sum e^(s-m),  o = sum e^(s-m) V
//
// Invariant: a vector's partial depends on its own query, its visible range and the pool only: every sum is one chain over
// ascending dimensions or tokens, masked tokens weigh exactly 0, so it does not matter which other vectors share the pass.
#include <limits>

#include "kernels/tables.h"
#include "kernels/tiles.h"
#include "simd/panel.h"
#include "simd/vmath.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

// Where a pass reads a page: `at(k)` is row k, 16 numbers wide.
struct FloatRows {
  const float* rows;
  int64_t stride;
  SAPWOOD_INLINE PF at(int k) const { return panel_load(rows + k * stride); }
};
struct HalfRows {
  const uint16_t* rows;
  int64_t stride;
  SAPWOOD_INLINE PF at(int k) const { return panel_load_half(rows + k * stride); }
};
struct CodeRows {  // code * scale, the same product whether or not the page is widened first
  const int8_t* rows;
  int64_t stride;
  const float* scales;  // K: [group][16], a scale for each lane. V: [16], a scale for each row
  SAPWOOD_INLINE PF scaled(int k, PF scale) const { return mul(panel_load_s8(rows + k * stride), scale); }
};
struct KeyCodes : CodeRows {
  SAPWOOD_INLINE PF at(int k) const { return scaled(k, panel_load(scales + k / kScaleDims * kPageTokens)); }
};
struct ValueCodes : CodeRows {
  SAPWOOD_INLINE PF at(int k) const { return scaled(k, panel_all(scales[k])); }
};

// Vectors from which a page of fewer bits is widened once instead of once per tile. Halves cost nothing on Zen 3: they are widened
// while they are loaded, beside the products. For code * scale products have to wait.
constexpr int kNever = 1 << 30, kWidenCodesFrom = 7;
#if defined(SAPWOOD_ISA_AVX2) || defined(SAPWOOD_ISA_AVXVNNI)
constexpr int kWidenHalvesFrom = kNever;
#else
constexpr int kWidenHalvesFrom = 7;
#endif

// One kv head's page by type: its K as rows of dimensions, its V as rows of tokens (16 dimensions from `d` on).
template <class Number, class Rows>
struct PlainPage {
  static constexpr int kWidenFrom = sizeof(Number) == 4 ? kNever : kWidenHalvesFrom;
  const Number *k, *v;
  int64_t v_stride;
  void open_keys(const ChunkArgs& args, int p) {
    k = reinterpret_cast<const Number*>(args.pages[p]), v = k + args.head_dim * kPageTokens, v_stride = args.padded_dim;
  }
  void open_values(const ChunkArgs&) {}
  SAPWOOD_INLINE Rows keys() const { return {k, kPageTokens}; }
  SAPWOOD_INLINE Rows values(int d) const { return {v + d, v_stride}; }
};
using HalfPage = PlainPage<uint16_t, HalfRows>;
using FloatPage = PlainPage<float, FloatRows>;

struct CodePage {
  static constexpr int kWidenFrom = kWidenCodesFrom;
  const int8_t *k, *v;
  int64_t v_stride;
  const uint16_t* stored;                       // scales as they lie: of K [group][16], then of V [16][group]
  float scales[kMaxScaleGroups * kPageTokens];  // widened: first those of K, then of V [group][16]
  void open_keys(const ChunkArgs& args, int p) {
    k = reinterpret_cast<const int8_t*>(args.pages[p]), v = k + args.head_dim * kPageTokens, v_stride = args.padded_dim;
    stored = reinterpret_cast<const uint16_t*>(v + args.padded_dim * kPageTokens);
    for (int i = 0; i < scale_groups(args.head_dim) * kPageTokens; i += 8) store(scales + i, load_half(stored + i));
  }
  void open_values(const ChunkArgs& args) {
    const int groups = scale_groups(args.head_dim);
    for (int t = 0; t < kPageTokens; t++)
      for (int g = 0; g < groups; g++) scales[g * kPageTokens + t] = half_to_float(stored[(kPageTokens + t) * groups + g]);
  }
  SAPWOOD_INLINE KeyCodes keys() const { return {{k, kPageTokens, scales}}; }
  SAPWOOD_INLINE ValueCodes values(int d) const { return {{v + d, v_stride, scales + d / kScaleDims * kPageTokens}}; }
};

// Few vectors take several blocks of 16 columns at once: their sums alone would wait for each other.
constexpr int kFewVectors = 3, kBlocks = kHighestTile / kFewVectors;

// acc += a[..][k] * b[..][k], one block of columns after the other: the sums leave room for one row of b and one number of a. The
// compiler would rather keep all of a's numbers for the next block, and put sums into memory.
template <int R, int C, class Rows>
SAPWOOD_INLINE void multiply_one(const Rows (&b)[C], int k, const float* a, int64_t a_stride, PF (&acc)[R][C]) {
SAPWOOD_UNROLL(4)
  for (int c = 0; c < C; c++) {
    if (c > 0) forget_loads();
    const PF row = b[c].at(k);
SAPWOOD_UNROLL(16)
    for (int r = 0; r < R; r++) acc[r][c] = fma(row, panel_all(a[r * a_stride + k]), acc[r][c]);
  }
}

template <int R, int C, class Rows>
SAPWOOD_INLINE void multiply(const Rows (&rows)[C], int k_count, const float* a, int64_t a_stride, PF (&acc)[R][C]) {
  Rows b[C];
SAPWOOD_UNROLL(4)
  for (int c = 0; c < C; c++) b[c] = rows[c];
  int k = 0;
  for (; k + 8 <= k_count; k += 8) {  // a page has only 16 tokens: where a loop ends is hard to foresee
SAPWOOD_UNROLL(8)
    for (int j = 0; j < 8; j++) multiply_one(b, k + j, a, a_stride, acc);
  }
  for (; k < k_count; k++) multiply_one(b, k, a, a_stride, acc);
}

template <int R, int C>
SAPWOOD_INLINE void clear(PF (&acc)[R][C]) {
SAPWOOD_UNROLL(16)
  for (int r = 0; r < R; r++)
SAPWOOD_UNROLL(4)
    for (int c = 0; c < C; c++) acc[r][c] = panel_zero();
}

template <int R, int C>
SAPWOOD_INLINE void leave(const PF (&acc)[R][C], float* out, int64_t stride) {
SAPWOOD_UNROLL(16)
  for (int r = 0; r < R; r++)
SAPWOOD_UNROLL(4)
    for (int c = 0; c < C; c++) panel_store(out + r * stride + 16 * c, acc[r][c]);
}

// Scores of R vectors, from `i` on, with the tokens of C pages.
template <int R, int C, class Rows>
SAPWOOD_NOINLINE void score_tile(const ChunkArgs& args, const Rows (&keys)[C], int i, int page) {
  PF acc[R][C];
  clear(acc);
  multiply(keys, args.head_dim, args.queries + int64_t(i) * args.head_dim, args.head_dim, acc);
  leave(acc, args.scores + i * kChunkTokens + page * kPageTokens, kChunkTokens);
}

SAPWOOD_INLINE int tokens_of(const ChunkArgs& args, int page) {
  const int left = args.tokens - page * kPageTokens;
  return left < kPageTokens ? left : kPageTokens;
}

// Outputs of R vectors, from `i` on: 16 * C dimensions from `d` on, over the chunk's tokens in ascending order.
template <int R, int C, class Page>
SAPWOOD_NOINLINE void weigh_tile(const ChunkArgs& args, const Page* pages, int i, int d) {
  PF acc[R][C];
  clear(acc);
  for (int p = args.first_page; p < args.end_page; p++) {
    decltype(pages->values(d)) values[C];
    for (int c = 0; c < C; c++) values[c] = pages[p].values(d + 16 * c);
    multiply(values, tokens_of(args, p), args.scores + i * kChunkTokens + p * kPageTokens, kChunkTokens, acc);
  }
  leave(acc, args.output + int64_t(i) * args.padded_dim + d, args.padded_dim);
}

// The highest tile as often as it fits, but where that leaves one or two vectors, whose sums would wait for each other, two tiles of
// about the same height come last.
template <int kHighest, class Run>
SAPWOOD_INLINE void for_even_tiles(int count, Run&& f) {
  for (int first = 0, rows; first < count; first += rows) {
    const int left = count - first;
    rows = left <= kHighest ? left : left <= kHighest + 2 ? kHighest * 2 / 3 : kHighest;
    for_tiles<kHighest>(rows, [&](auto height, int i) { f(height, first + i); });
  }
}

template <class Rows>
void widen(const Rows& from, int count, float* to) {
  for (int k = 0; k < count; k++) panel_store(to + k * 16, from.at(k));
}

void fetch(const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) prefetch(from + i);
}

// Scores of one vector as the softmax takes them: capped, -inf where masked; gives m, -inf where it saw nothing.
SAPWOOD_INLINE void mask(const ChunkArgs& args, int i) {
  float* s = args.scores + i * kChunkTokens;
  const int begin = args.first_page * kPageTokens, end = args.end_page * kPageTokens;
  const float masked = -std::numeric_limits<float>::infinity();
  if (args.soft_cap > 0)
    for (int t = begin; t < end; t += 8) store(s + t, mul(all(args.soft_cap), tanh(div(load(s + t), all(args.soft_cap)))));
  for (int t = begin; t < args.low[i]; t++) s[t] = masked;
  for (int t = args.high[i] > begin ? args.high[i] : begin; t < end; t++) s[t] = masked;
  F m = all(masked);
  for (int t = begin; t < end; t += 8) m = max(m, load(s + t));
  args.maximum[i] = max_of(m);
}

// Masked scores of one vector -> weights e^(s-m) in place, exactly 0 where masked; gives l.
SAPWOOD_INLINE void soften(const ChunkArgs& args, int i) {
  float* s = args.scores + i * kChunkTokens;
  const float masked = -std::numeric_limits<float>::infinity();
  const F m = all(args.maximum[i] == masked ? 0 : args.maximum[i]);  // saw nothing: weights 0, the fold skips it
  F l = zero();
  for (int t = args.first_page * kPageTokens; t < args.end_page * kPageTokens; t += kPageTokens) {
    F e[2] = {sub(load(s + t), m), sub(load(s + t + 8), m)};
    exp(e);
SAPWOOD_UNROLL(2)
    for (int c = 0; c < 2; c++) store(s + t + 8 * c, e[c]), l = add(l, e[c]);
  }
  args.sum[i] = sum_of(l);
}

int64_t key_bytes(const ChunkArgs& args) { return int64_t(args.head_dim) * kPageTokens * kv_bytes(args.type); }

void fetch_keys(const ChunkArgs& args, int page) {
  if (page < args.end_page) fetch(args.pages[page], key_bytes(args));
}

void fetch_values(const ChunkArgs& args, int page) {
  fetch(args.pages[page] + key_bytes(args), int64_t(args.padded_dim) * kPageTokens * kv_bytes(args.type));
}

template <int C, class Page>
void score_block(const ChunkArgs& args, const Page* pages, int page) {
  decltype(pages->keys()) keys[C];
  for (int c = 0; c < C; c++) {
    keys[c] = pages[page + c].keys();
    fetch_keys(args, page + C + c);
  }
  for_even_tiles<kHighestTile / C>(args.count, [&](auto height, int i) { score_tile<height.value, C>(args, keys, i, page); });
  for (int c = 0; c < C; c++) fetch_values(args, page + c);
}

template <int C, class Page>
void weigh_block(const ChunkArgs& args, const Page* pages, int d) {
  for_even_tiles<kHighestTile / C>(args.count, [&](auto height, int i) { weigh_tile<height.value, C>(args, pages, i, d); });
}

// A page read by many vectors is widened to floats first: all of K, or 16 dimensions of V.
template <class Page>
void score_widened(const ChunkArgs& args, const Page& page, int p) {
  const FloatRows keys[1] = {{args.page, kPageTokens}};
  fetch_keys(args, p + 1);
  widen(page.keys(), args.head_dim, args.page);
  for_even_tiles<kHighestTile>(args.count, [&](auto height, int i) { score_tile<height.value, 1>(args, keys, i, p); });
  fetch_values(args, p);
}

struct WidenedValues {
  float* rows;
  SAPWOOD_INLINE FloatRows values(int) const { return {rows, 16}; }
};

template <class Page>
void weigh_widened(const ChunkArgs& args, const Page* pages, int d) {
  WidenedValues widened[kChunkPages];
  for (int p = args.first_page; p < args.end_page; p++) {
    widened[p].rows = args.page + p * kPageTokens * 16;
    widen(pages[p].values(d), tokens_of(args, p), widened[p].rows);
  }
  weigh_block<1>(args, widened, d);
}

template <class Page>
void attend(const ChunkArgs& args) {
  Page pages[kChunkPages];
  const bool widened = args.count >= Page::kWidenFrom;
  const int blocks = args.count <= kFewVectors ? kBlocks : 1;
  for (int p = args.first_page; p < args.end_page; p++) pages[p].open_keys(args, p);
  fetch_keys(args, args.first_page);
  for (int p = args.first_page; p < args.end_page;) {
    if (blocks > 1 && p + blocks <= args.end_page) score_block<kBlocks>(args, pages, p), p += blocks;
    else if (widened) score_widened(args, pages[p], p), p++;
    else score_block<1>(args, pages, p), p++;
  }
  for (int i = 0; i < args.count; i++) mask(args, i);
  for (int i = 0; i < args.count; i++) soften(args, i);
  for (int p = args.first_page; p < args.end_page; p++) pages[p].open_values(args);
  for (int d = 0; d < args.padded_dim;) {
    if (blocks > 1 && d + 16 * blocks <= args.padded_dim) weigh_block<kBlocks>(args, pages, d), d += 16 * blocks;
    else if (widened) weigh_widened(args, pages, d), d += 16;
    else weigh_block<1>(args, pages, d), d += 16;
  }
}

void attend_chunk(const ChunkArgs& args) {
  if (args.type == KvType::kI8) attend<CodePage>(args);
  else if (args.type == KvType::kF16) attend<HalfPage>(args);
  else attend<FloatPage>(args);
}

void fold_partials(const FoldArgs& f) {
  const float nothing = -std::numeric_limits<float>::infinity();
  for (int first = 0; first < f.count; first += 8) {
    float seen[8], old_weights[8], new_weights[8];
    const F before = load(f.maximum + first), part = load(f.part_maximum + first), m = max(before, part);
    const F old_weight = exp(sub(before, m)), new_weight = exp(sub(part, m));
    store(seen, before), store(old_weights, old_weight), store(new_weights, new_weight);
    store(f.maximum + first, m);
    store(f.sum + first, add(mul(load(f.sum + first), old_weight), mul(load(f.part_sum + first), new_weight)));
    for (int j = 0; j < 8 && first + j < f.count; j++) {
      const float* from = f.part_output[first + j];
      float* to = f.output + int64_t(first + j) * f.padded_dim;
      if (f.part_maximum[first + j] == nothing) continue;
      if (seen[j] == nothing) std::memcpy(to, from, size_t(f.padded_dim) * sizeof(float));
      else
        for (int d = 0; d < f.padded_dim; d += 8) store(to + d, fma(load(from + d), all(new_weights[j]), mul(load(to + d), all(old_weights[j]))));
    }
  }
}

// out[0..head_dim) = output / sum; 0 / 0 = NaN where a vector saw nothing, which only a broken plan can ask for.
void finish_vector(const float* output, float sum, int head_dim, float* out) {
  int d = 0;
  for (; d + 8 <= head_dim; d += 8) store(out + d, div(load(output + d), all(sum)));
  for (; d < head_dim; d++) out[d] = output[d] / sum;
}

}  // namespace

void fill_attention_kernels(KernelTable& table) {
  table.attend_chunk = attend_chunk;
  table.fold_partials = fold_partials;
  table.finish_vector = finish_vector;
}

}  // namespace sapwood::SAPWOOD_ISA
