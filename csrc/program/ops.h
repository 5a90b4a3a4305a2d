// Owns: the operations that a program is made of. Each works on static buffers and is told only the rows of this step.
// Invariant: `run` is called by every lane; the program puts a barrier after each operation.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "linear/linear.h"
#include "program/step.h"

namespace sapwood {

enum class Domain : uint8_t { kTokens, kLogits };  // one row per token of the step, or per row that needs logits

struct FloatBuffer {
  int64_t width;
  Domain domain;
  Array<float> data;
  float* row(int64_t i) const { return data.data() + i * width; }
};

// Activations whose forms are the union of what their consumers read; they get memory when the program is finished.
struct ActivationBuffer {
  int64_t k;
  Domain domain;
  unsigned want = 0;
  std::unique_ptr<Activations> data;
};

struct StepContext {
  const BatchRows& rows;
  const KvPool& pool;
  std::span<const LogitRow> logit_rows;  // the block whose logits are computed now
  StepOutput& output;
  const Masks* masks;  // to wait for before sampling; null: none
  int64_t count(Domain domain) const { return int64_t(domain == Domain::kTokens ? rows.tokens.size() : logit_rows.size()); }
};

class Op {
 public:
  virtual ~Op() = default;
  virtual const char* name() const = 0;
  virtual void prepare(const StepContext&) {}  // on the compute thread, before the region
  virtual void run(const Lane& lane, const StepContext& context) = 0;
};

struct EmbedOp final : Op {  // x[row] = scale * weight[token of the row]
  const char* name() const override { return "embed"; }
  std::shared_ptr<Weight> weight;
  float scale;
  FloatBuffer* x;
  void run(const Lane&, const StepContext&) override;
};

// x[row] += delta[row] (or += rms_norm(delta[row]) * delta_norm); out[row] = rms_norm(x[row]) * weight, quantised.
// With an output in the logits domain only the rows that need logits are read.
struct NormOp final : Op {
  const char* name() const override { return "norm"; }
  FloatBuffer* x;
  FloatBuffer* delta = nullptr;
  std::vector<float> delta_norm, weight;
  float epsilon;
  ActivationBuffer* out;
  void run(const Lane&, const StepContext&) override;
};

struct LinearOp final : Op {
  const char* name() const override { return "linear"; }
  std::unique_ptr<Linear> linear;
  ActivationBuffer* input;
  FloatBuffer* out;
  Claims claims;
  void prepare(const StepContext&) override { claims.reset(); }
  void run(const Lane&, const StepContext&) override;
};

struct BiasOp final : Op {  // x[row] += bias
  const char* name() const override { return "bias"; }
  FloatBuffer* x;
  std::vector<float> bias;
  void run(const Lane&, const StepContext&) override;
};

// qkv[row] = [query heads | key heads | value heads]: bias, norms and rotation in place; keys and values go to the pool.
struct HeadsOp final : Op {
  const char* name() const override { return "heads"; }
  FloatBuffer* qkv;
  int layer, query_heads, rotary_dim;
  float epsilon;
  std::vector<float> bias, query_norm, key_norm;                   // each may be empty
  std::vector<float> query_balance, key_balance;                   // [kv_heads * head_dim], empty or reciprocal powers of two
  std::shared_ptr<const std::vector<float>> cosine, sine;          // [position][rotary_dim / 2]
  void run(const Lane&, const StepContext&) override;

 private:
  void run_head(const StepContext&, int64_t row, int head) const;
};

struct AttentionOp final : Op {
  const char* name() const override { return "attention"; }
  std::shared_ptr<Attention> attention;
  const AttentionPlan* plan;  // built by the program for this op's window
  int layer;
  AttentionShape shape;
  FloatBuffer *qkv, *out;
  Claims ahead, strips;
  void prepare(const StepContext&) override;
  void run(const Lane&, const StepContext&) override;
};

enum class Gate : uint8_t { kSilu, kGeluTanh };

// out = quantise(x), or quantise(gate(x[0..k)) * x[k..2k)).
struct QuantiseOp final : Op {
  const char* name() const override { return gated ? "gate" : "quantise"; }
  FloatBuffer* x;
  bool gated = false;
  Gate gate = Gate::kSilu;
  ActivationBuffer* out;
  void run(const Lane&, const StepContext&) override;
};

struct SoftCapOp final : Op {  // x = cap * tanh(x / cap)
  const char* name() const override { return "soft_cap"; }
  FloatBuffer* x;
  float cap;
  void run(const Lane&, const StepContext&) override;
};

// Chooses ids, which go to the token table and to the step's output, and reports log-probabilities.
struct SampleOp final : Op {
  const char* name() const override { return "sample"; }
  FloatBuffer* logits;
  Sampler* sampler;
  void prepare(const StepContext&) override;
  void run(const Lane& lane, const StepContext& context) override {
    if (context.masks != nullptr) context.masks->wait();
    sampler->run(lane);
  }
};

}  // namespace sapwood
