// Owns: a recorded step: a list of operations over static buffers, replayed by one call for any row counts up to the limits.
// The CPU counterpart of a CUDA graph; decode, prefill and mixed steps replay the same list and nothing is padded.
//
//   stage    embed .. heads | attention | quantise .. heads | attention | quantise .. linear | norm linear sample
//   rows     each for itself  all         each for itself     all         each for itself      those that need logits
//
// With few rows all lanes share each operation. With many, a stage whose rows need nothing of each other is cut into pieces of
// rows, and a lane takes one piece through the whole stage: what lies between the operations stays in its core's cache.
// A row's arithmetic is the same either way.
//
// Operations on rows of logits are its tail, replayed for one block of rows after the other, so that logits never take more memory
// than a block. Invariant: a stage, and an operation that lanes share, is whole before the next begins; buffers are
// allocated once, when recording is finished.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "program/ops.h"

namespace sapwood {

class Program : public std::enable_shared_from_this<Program> {
 public:
  // Without `host` there are no host pages, and a step may not name any.
  Program(std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvPool> kv, const StepLimits& limits, std::shared_ptr<HostPages> host = nullptr);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Recording. Buffers are named by index; wrong indices, widths or sizes throw Error at once.
  int add_buffer(int64_t width, Domain domain);
  int add_activations(int64_t k, Domain domain);
  void embed(std::shared_ptr<Weight> weight, float scale, int x);
  struct NormSpec {
    int x, delta, out;  // delta: -1 for none
    std::vector<float> weight, delta_norm;
    float epsilon;
  };
  void norm(NormSpec spec);
  void linear(std::vector<std::shared_ptr<Weight>> weights, int input, int out);
  void bias(int x, std::vector<float> bias);
  struct HeadsSpec {
    int qkv, layer, query_heads, rotary_dim;
    float epsilon;
    std::vector<float> bias, query_norm, key_norm;
    std::vector<float> balance;  // powers of two, [kv_heads * head_dim]: keys are divided by them, queries multiplied
    std::shared_ptr<const std::vector<float>> cosine, sine;
  };
  void heads(HeadsSpec spec);
  void attention(int qkv, int out, int layer, const AttentionShape& shape);
  void quantise(int x, int out);
  void gate(int x, Gate kind, int out);
  void soft_cap(int x, float cap);
  void sample(int logits);
  void widen_activations();  // 16 bits wherever linears would read 8
  void cut_rows(int64_t piece_rows);  // rows that a piece has at least, half as many or twice; 0: lanes always share operations
  void finish();

  // Replaying, on one thread at a time.
  void check(const Step& step) const;
  StepOutput run(const Step& step);
  FloatBuffer& buffer(int index);
  const FloatBuffer& kept_buffer(int index);  // whose rows can be looked at after a step
  int64_t last_count(Domain domain) const { return domain == Domain::kTokens ? int64_t(rows_.tokens.size()) : last_block_; }  // of logits: the last block
  // With profiling on, lane 0 adds up the nanoseconds of operations, by name.
  void set_profiling(bool on) { profiling_ = on, profile_.clear(); }
  const std::map<std::string, int64_t>& profile() const { return profile_; }
  const SlotTables& tables() const { return tables_; }

 private:
  ActivationBuffer& activations(int index);
  void record(std::unique_ptr<Op> op, Domain domain);  // that writes to this domain
  struct Stage {
    Span ops;
    bool mixes_rows;
  };
  void allocate();
  void cut_stages();
  int64_t count_pieces(int64_t rows) const;
  void run_stages(size_t first, size_t end, const StepContext& context);
  void run_stage(Lane& lane, const Stage& stage, const StepContext& context);
  void run_ops(Lane& lane, const Span& ops, const StepContext& context);
  void recording() const;
  const AttentionPlan* plan_for(int window, int group, int kind);
  int64_t capacity(Domain domain) const;

  struct WindowPlan {
    int kind;  // of the layers that use it
    AttentionPlan::Options options;
    AttentionPlan plan;
  };
  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<KvPool> kv_;
  std::shared_ptr<HostPages> host_;
  SlotTables tables_;
  BatchRows rows_;
  std::vector<std::unique_ptr<FloatBuffer>> buffers_;
  std::vector<std::unique_ptr<ActivationBuffer>> activations_;
  std::vector<std::unique_ptr<WindowPlan>> plans_;
  std::shared_ptr<Attention> attention_;
  std::vector<std::unique_ptr<Op>> ops_;
  Sampler sampler_;
  std::deque<Stage> stages_;  // of finished programs; those from tail_stage_ on work on logits
  size_t tail_stage_ = 0;
  int stage_ = 0;             // while recording: stages begun before the next operation
  int64_t tail_ = -1, last_block_ = 0;  // index of the first operation on logits; rows of the last block
  int64_t piece_rows_ = 64;
  bool finished_ = false, profiling_ = false, wide_ = false;
  std::map<std::string, int64_t> profile_;
};

}  // namespace sapwood
