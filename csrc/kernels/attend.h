// Owns: the argument structs of the attention and row-rotation kernels, and how one kv head's page is laid out.
// See kernels/attend.cpp for the drawing.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sapwood {

constexpr int kPageTokens = 16, kChunkTokens = 128, kChunkPages = kChunkTokens / kPageTokens;

enum class KvType : uint8_t { kF16, kF32, kI8 };
inline int64_t kv_bytes(KvType type) { return type == KvType::kF32 ? 4 : type == KvType::kF16 ? 2 : 1; }

// 8-bit pages: code * scale, one half-float scale for each token, head and group of dimensions, behind the codes.
//   [ K: head_dim x 16 | V: 16 x padded_dim | scales of K: group x 16 | scales of V: 16 x group ]
constexpr int kScaleDims = 32, kMaxHeadDim = 1024, kMaxScaleGroups = kMaxHeadDim / kScaleDims;
inline int scale_groups(int head_dim) { return (head_dim + kScaleDims - 1) / kScaleDims; }

// Floats of scratch for one page of K, or for 16 dimensions of V of all pages.
inline int64_t attend_scratch(int head_dim) { return int64_t(head_dim > kChunkTokens ? head_dim : kChunkTokens) * kPageTokens; }

struct StoreArgs {  // one token's key and value of one kv head
  KvType type;
  const float *key, *value;  // [head_dim]
  int head_dim, padded_dim;
  std::byte* page;           // of this kv head
  int token;                 // 0..15
};

// One kv head against one absolute chunk of 128 tokens, for `count` query vectors (rows x heads of the group).
struct ChunkArgs {
  KvType type;
  const std::byte* pages[kChunkPages];  // of this kv head: K [head_dim][16], then V [16][padded_dim], then any scales
  int first_page, end_page;             // pages that any vector can see
  int tokens;                           // tokens of the chunk that any vector can see end before this
  int head_dim, padded_dim;
  int count;
  const float* queries;                 // [count][head_dim], already scaled
  const int *low, *high;                // [count]: visible tokens [low, high) within the chunk
  float soft_cap;                       // 0: none
  float* scores;                        // scratch [count][128]
  float* page;                          // scratch [attend_scratch(head_dim)]
  float *maximum, *sum, *output;        // [count], [count], [count][padded_dim]: the partial
};

// Folds a partial into the running state of each of `count` vectors; both are (maximum, sum, output). A partial that saw nothing
// is skipped. Maxima and sums are read and written in eights: their arrays hold fold_room(count) numbers.
constexpr int fold_room(int count) { return (count + 7) / 8 * 8; }
struct FoldArgs {
  int count, padded_dim;
  float *maximum, *sum, *output;             // [count], [count], [count][padded_dim]
  const float *part_maximum, *part_sum;      // [count]
  const float* const* part_output;           // [count]: each [padded_dim]
};

struct HeadArgs {  // one head of one row
  float* x;                  // [head_dim], changed in place
  const float* bias;         // [head_dim] or null
  const float* norm;         // RMSNorm weight [head_dim] or null
  float epsilon;
  const float *cosine, *sine;  // [rotary_dim / 2] of this position, or null
  int head_dim, rotary_dim;
};

}  // namespace sapwood
