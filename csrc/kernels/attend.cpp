// Owns: attention of query vectors over one chunk of the paged KV pool, and the fold of chunk partials.
//
//   page of one kv head (16 tokens):   K  [head_dim][16]      q . K: a vector of K is 16 tokens of one dimension
//                                      V  [16][padded_dim]    p . V: a vector of V is 16 dimensions of one token
//   both are the same small product    out[i][0..16) += sum_k a[i][k] * b[k][0..16)       (outer_product below)
//
//   chunk = 8 pages -> partial (m, l, o) of each vector:  m = max s,  l = sum e^(s-m),  o = sum e^(s-m) V
//
// Invariant: a vector's partial depends on its own query, its visible range and the pool only: every sum is one chain over
// ascending dimensions or tokens, masked tokens weigh exactly 0, so it does not matter which other vectors share the pass.
#include <limits>

#include "kernels/tables.h"
#include "kernels/tiles.h"
#include "simd/vmath.h"

namespace sapwood::SAPWOOD_ISA {
namespace {

struct Pair {
  F low, high;
};

// Where a pass reads a page: `at(k)` is row k, 16 numbers wide.
struct FloatRows {
  const float* rows;
  int64_t stride;
  SAPWOOD_INLINE Pair at(int k) const { return {load(rows + k * stride), load(rows + k * stride + 8)}; }
};
struct HalfRows {
  const uint16_t* rows;
  int64_t stride;
  SAPWOOD_INLINE Pair at(int k) const { return {load_half(rows + k * stride), load_half(rows + k * stride + 8)}; }
};
struct CodeRows {  // code * scale, the same product whether or not the page is widened first
  const int8_t* rows;
  int64_t stride;
  const float* scales;  // K: [group][16], a scale for each lane. V: [16], a scale for each row
  SAPWOOD_INLINE static Pair scaled(const int8_t* p, F low, F high) { return {mul(load_s8(p), low), mul(load_s8(p + 8), high)}; }
};
struct KeyCodes : CodeRows {
  SAPWOOD_INLINE Pair at(int k) const {
    const float* s = scales + k / kScaleDims * kPageTokens;
    return scaled(rows + k * stride, load(s), load(s + 8));
  }
};
struct ValueCodes : CodeRows {
  SAPWOOD_INLINE Pair at(int k) const {
    const F s = all(scales[k]);
    return scaled(rows + k * stride, s, s);
  }
};

// One kv head's page by type: its K as rows of dimensions, its V as rows of tokens (16 dimensions from `d` on).
template <class Number, class Rows>
struct PlainPage {
  static constexpr bool kIsWide = sizeof(Number) == 4;
  using Keys = Rows;
  using Values = Rows;
  const ChunkArgs& args;
  const Number* page;
  PlainPage(const ChunkArgs& a, int p) : args(a), page(reinterpret_cast<const Number*>(a.pages[p])) {}
  void open_keys() {}
  void open_values() {}
  Keys keys() const { return {page, kPageTokens}; }
  Values values(int d) const { return {page + args.head_dim * kPageTokens + d, args.padded_dim}; }
};
using HalfPage = PlainPage<uint16_t, HalfRows>;
using FloatPage = PlainPage<float, FloatRows>;

struct CodePage {
  static constexpr bool kIsWide = false;
  using Keys = KeyCodes;
  using Values = ValueCodes;
  const ChunkArgs& args;
  const int8_t* page;
  int groups;
  float scales[kMaxScaleGroups * kPageTokens];  // widened: of K as they lie, of V [group][16]
  CodePage(const ChunkArgs& a, int p) : args(a), page(reinterpret_cast<const int8_t*>(a.pages[p])), groups(scale_groups(a.head_dim)) {}
  const uint16_t* stored(int part) const {
    return reinterpret_cast<const uint16_t*>(page + (args.head_dim + args.padded_dim) * kPageTokens) + part * groups * kPageTokens;
  }
  void open_keys() {
    for (int i = 0; i < groups * kPageTokens; i += 8) store(scales + i, load_half(stored(0) + i));
  }
  void open_values() {
    for (int t = 0; t < kPageTokens; t++)
      for (int g = 0; g < groups; g++) scales[g * kPageTokens + t] = half_to_float(stored(1)[t * groups + g]);
  }
  Keys keys() const { return {{page, kPageTokens, scales}}; }
  Values values(int d) const {
    return {{page + args.head_dim * kPageTokens + d, args.padded_dim, scales + d / kScaleDims * kPageTokens}};
  }
};

constexpr int kWidenFrom = 7;  // vectors from which a page of fewer bits is widened once instead of once per tile

template <class Rows, int R>
SAPWOOD_NOINLINE void outer_tile(const Rows b, int k_count, const float* a, int64_t a_stride, float* out, int64_t stride, bool first) {
  F acc[R][2];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) acc[r][c] = first ? zero() : load(out + r * stride + 8 * c);
  for (int k = 0; k < k_count; k++) {
    const Pair row = b.at(k);
SAPWOOD_UNROLL(8)
    for (int r = 0; r < R; r++) {
      const F x = all(a[r * a_stride + k]);
      acc[r][0] = fma(row.low, x, acc[r][0]);
      acc[r][1] = fma(row.high, x, acc[r][1]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) store(out + r * stride + 8 * c, acc[r][c]);
}

template <class Rows>
void score_page(const ChunkArgs& args, const Rows& keys, int page) {
  for_tiles<6>(args.count, [&](auto height, int i) {
    outer_tile<Rows, height.value>(keys, args.head_dim, args.queries + int64_t(i) * args.head_dim, args.head_dim,
                                   args.scores + i * kChunkTokens + page * kPageTokens, kChunkTokens, true);
  });
}

template <class Rows>
void weigh_part(const ChunkArgs& args, const Rows& values, int d, int page, int tokens) {
  for_tiles<6>(args.count, [&](auto height, int i) {
    outer_tile<Rows, height.value>(values, tokens, args.scores + i * kChunkTokens + page * kPageTokens, kChunkTokens,
                                   args.output + int64_t(i) * args.padded_dim + d, args.padded_dim, page == args.first_page);
  });
}

template <class Rows>
FloatRows widen(const Rows& from, int count, float* to, int64_t stride) {
  for (int k = 0; k < count; k++) {
    const Pair row = from.at(k);
    store(to + k * stride, row.low), store(to + k * stride + 8, row.high);
  }
  return {to, stride};
}

void fetch(const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) prefetch(from + i);
}

// Scores of one vector -> weights e^(s-m) in place, exactly 0 where masked; gives m and l.
void soften(const ChunkArgs& args, int i) {
  float* s = args.scores + i * kChunkTokens;
  const int begin = args.first_page * kPageTokens, end = args.end_page * kPageTokens;
  const float masked = -std::numeric_limits<float>::infinity();
  if (args.soft_cap > 0)
    for (int t = begin; t < end; t += 8) store(s + t, mul(all(args.soft_cap), tanh(div(load(s + t), all(args.soft_cap)))));
  for (int t = begin; t < args.low[i]; t++) s[t] = masked;
  for (int t = args.high[i] > begin ? args.high[i] : begin; t < end; t++) s[t] = masked;
  F m = all(masked), l = zero();
  for (int t = begin; t < end; t += 8) m = max(m, load(s + t));
  const float largest = max_of(m);
  args.maximum[i] = largest;
  if (largest == masked) {  // saw nothing: weights 0, the fold skips it
    for (int t = begin; t < end; t += 8) store(s + t, zero());
    args.sum[i] = 0;
    return;
  }
  for (int t = begin; t < end; t += 8) {
    const F e = exp(sub(load(s + t), all(largest)));
    store(s + t, e);
    l = add(l, e);
  }
  args.sum[i] = sum_of(l);
}

template <class Page>
void attend(const ChunkArgs& args) {
  const int64_t k_bytes = int64_t(args.head_dim) * kPageTokens * kv_bytes(args.type);
  const int64_t v_bytes = int64_t(args.padded_dim) * kPageTokens * kv_bytes(args.type);
  const bool widened = !Page::kIsWide && args.count >= kWidenFrom;
  for (int p = args.first_page; p < args.end_page; p++) {
    Page page(args, p);
    page.open_keys();
    if (p + 1 < args.end_page) fetch(args.pages[p + 1], k_bytes);
    if (widened) score_page(args, widen(page.keys(), args.head_dim, args.page, kPageTokens), p);
    else score_page(args, page.keys(), p);
    fetch(args.pages[p] + k_bytes, v_bytes);
  }
  for (int i = 0; i < args.count; i++) soften(args, i);
  for (int p = args.first_page; p < args.end_page; p++) {
    Page page(args, p);
    page.open_values();
    const int left = args.tokens - p * kPageTokens, tokens = left < kPageTokens ? left : kPageTokens;
    for (int d = 0; d < args.padded_dim; d += 16) {
      if (widened) weigh_part(args, widen(page.values(d), tokens, args.page, 16), d, p, tokens);
      else weigh_part(args, page.values(d), d, p, tokens);
    }
  }
}

void attend_chunk(const ChunkArgs& args) {
  if (args.type == KvType::kI8) attend<CodePage>(args);
  else if (args.type == KvType::kF16) attend<HalfPage>(args);
  else attend<FloatPage>(args);
}

void fold_partial(const FoldArgs& f) {
  const float nothing = -std::numeric_limits<float>::infinity();
  if (f.part_maximum == nothing) return;
  if (*f.maximum == nothing) {
    *f.maximum = f.part_maximum, *f.sum = f.part_sum;
    std::memcpy(f.output, f.part_output, size_t(f.padded_dim) * sizeof(float));
    return;
  }
  const float m = *f.maximum > f.part_maximum ? *f.maximum : f.part_maximum;
  const float old_weight = exp(*f.maximum - m), new_weight = exp(f.part_maximum - m);
  *f.maximum = m;
  *f.sum = *f.sum * old_weight + f.part_sum * new_weight;
  for (int d = 0; d < f.padded_dim; d += 8)
    store(f.output + d, fma(load(f.part_output + d), all(new_weight), mul(load(f.output + d), all(old_weight))));
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
  table.fold_partial = fold_partial;
  table.finish_vector = finish_vector;
}

}  // namespace sapwood::SAPWOOD_ISA
