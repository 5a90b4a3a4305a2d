// Owns: the argument structs of the attention and row-rotation kernels. See kernels/attend.cpp for the drawing.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sapwood {

constexpr int kPageTokens = 16, kChunkTokens = 128, kChunkPages = kChunkTokens / kPageTokens;

enum class KvType : uint8_t { kF16, kF32 };
inline int64_t kv_bytes(KvType type) { return type == KvType::kF16 ? 2 : 4; }

// One kv head against one absolute chunk of 128 tokens, for `count` query vectors (rows x heads of the group).
struct ChunkArgs {
  KvType type;
  const std::byte* pages[kChunkPages];  // of this kv head: K [head_dim][16], then V [16][padded_dim]
  int first_page, end_page;             // pages that any vector can see
  int tokens;                           // tokens of the chunk that any vector can see end before this
  int head_dim, padded_dim;
  int count;
  const float* queries;                 // [count][head_dim], already scaled
  const int *low, *high;                // [count]: visible tokens [low, high) within the chunk
  float soft_cap;                       // 0: none
  float* scores;                        // scratch [count][128]
  float* page;                          // scratch [16 * padded_dim]
  float *maximum, *sum, *output;        // [count], [count], [count][padded_dim]: the partial
};

// Folds one partial into the running state of a vector; both are (maximum, sum, output). A partial that saw nothing is skipped.
struct FoldArgs {
  float *maximum, *sum, *output;
  float part_maximum, part_sum;
  const float* part_output;
  int padded_dim;
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
