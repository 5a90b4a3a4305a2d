// Owns: one layer's attention over a plan: gathering query vectors, running chunk kernels, folding partials.
// Invariant: output of a row = fold of its chunks' independent partials in ascending order, whoever computed them.
#pragma once
#include <memory>
#include <vector>

#include "attention/kv_pool.h"
#include "attention/plan.h"
#include "core/thread_pool.h"

namespace sapwood {

struct AttentionShape {
  int query_heads;
  float scale;      // of q . k
  float soft_cap;   // 0: none
  int window;       // a row at position p sees (p - window, p]; 0: all
};

class Attention {
 public:
  // Scratch for `lanes` lanes; serves every layer of a model whose heads have this shape.
  Attention(const KvShape& kv, int query_heads, int lanes);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  void prepare(const AttentionPlan& plan);  // before the region: makes room for the plan's partials
  // Every lane calls it; `queries` and `out` are [row][stride], heads side by side. The output is whole when
  // it returns.
  struct Step {
    const AttentionPlan& plan;
    const KvPool& pool;
    int layer;
    AttentionShape shape;
    const float* queries;
    int64_t query_stride;
    float* out;
    int64_t out_stride;
  };
  void run(Lane& lane, const Step& step);

 private:
  struct Scratch;
  void gather(const Step& step, const Strip& strip, int kv_head, Scratch& s) const;
  bool run_chunk(const Step& step, const Strip& strip, int kv_head, int chunk, Scratch& s) const;
  void run_ahead(const Step& step, const Strip& strip, int kv_head, Scratch& s);
  void run_strip(const Step& step, const Strip& strip, int kv_head, Scratch& s);
  float* partial(const Step& step, RowRef ref, int chunk, int query_head) const;

  KvShape kv_;
  int query_heads_, group_, entry_;
  std::vector<std::unique_ptr<Scratch>> scratch_;
  Array<float> partials_;  // [partial][query head][padded_dim + 8]: output, maximum, sum
};

}  // namespace sapwood
