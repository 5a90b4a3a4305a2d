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

struct HalfKv {
  using Number = uint16_t;
  static SAPWOOD_INLINE F read(const Number* p) { return load_half(p); }
};
struct FloatKv {
  using Number = float;
  static SAPWOOD_INLINE F read(const Number* p) { return load(p); }
};

constexpr int kWidenFrom = 7;  // vectors from which a page of halves is widened once instead of once per tile

template <class T, int R>
SAPWOOD_NOINLINE void outer_tile(const typename T::Number* b, int64_t b_stride, int k_count, const float* a, int64_t a_stride, float* out, int64_t stride, bool first) {
  F acc[R][2];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) acc[r][c] = first ? zero() : load(out + r * stride + 8 * c);
  for (int k = 0; k < k_count; k++, b += b_stride) {
    const F b0 = T::read(b), b1 = T::read(b + 8);
SAPWOOD_UNROLL(8)
    for (int r = 0; r < R; r++) {
      const F x = all(a[r * a_stride + k]);
      acc[r][0] = fma(b0, x, acc[r][0]);
      acc[r][1] = fma(b1, x, acc[r][1]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 2; c++) store(out + r * stride + 8 * c, acc[r][c]);
}

template <class T>
void score_page(const ChunkArgs& args, const typename T::Number* k_page, int page) {
  for_tiles<6>(args.count, [&](auto height, int i) {
    outer_tile<T, height.value>(k_page, kPageTokens, args.head_dim, args.queries + int64_t(i) * args.head_dim, args.head_dim,
                                args.scores + i * kChunkTokens + page * kPageTokens, kChunkTokens, true);
  });
}

template <class T>
void weigh_page(const ChunkArgs& args, const typename T::Number* v_page, int page, int tokens, bool first) {
  for (int d = 0; d < args.padded_dim; d += 16)
    for_tiles<6>(args.count, [&](auto height, int i) {
      outer_tile<T, height.value>(v_page + d, args.padded_dim, tokens, args.scores + i * kChunkTokens + page * kPageTokens, kChunkTokens,
                                  args.output + int64_t(i) * args.padded_dim + d, args.padded_dim, first);
    });
}

template <class T>
const float* widen(const typename T::Number* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += 8) store(to + i, T::read(from + i));
  return to;
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

template <class T>
void attend(const ChunkArgs& args) {
  using Number = typename T::Number;
  const int64_t k_count = int64_t(args.head_dim) * kPageTokens, v_count = int64_t(args.padded_dim) * kPageTokens;
  const bool widened = sizeof(Number) == 2 && args.count >= kWidenFrom;
  for (int p = args.first_page; p < args.end_page; p++) {
    const auto* k_page = reinterpret_cast<const Number*>(args.pages[p]);
    if (p + 1 < args.end_page) fetch(args.pages[p + 1], k_count * int64_t(sizeof(Number)));
    if (widened) score_page<FloatKv>(args, widen<T>(k_page, k_count, args.page), p);
    else score_page<T>(args, k_page, p);
    fetch(reinterpret_cast<const std::byte*>(k_page + k_count), v_count * int64_t(sizeof(Number)));
  }
  for (int i = 0; i < args.count; i++) soften(args, i);
  for (int p = args.first_page; p < args.end_page; p++) {
    const auto* v_page = reinterpret_cast<const Number*>(args.pages[p]) + k_count;
    const int left = args.tokens - p * kPageTokens, tokens = left < kPageTokens ? left : kPageTokens;
    if (widened) weigh_page<FloatKv>(args, widen<T>(v_page, int64_t(tokens) * args.padded_dim, args.page), p, tokens, p == args.first_page);
    else weigh_page<T>(args, v_page, p, tokens, p == args.first_page);
  }
}

void attend_chunk(const ChunkArgs& args) {
  if (args.type == KvType::kF16) attend<HalfKv>(args);
  else attend<FloatKv>(args);
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
