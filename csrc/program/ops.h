// Owns: the operations that a program is made of. Each works on static buffers and is told only the rows of this step.
// Invariant: `run` is called either by every lane for all rows, or by one lane alone for a piece of them; its work is whole when it returns.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "linear/linear.h"
#include "program/step.h"

namespace sapwood {

enum class Domain : uint8_t { kTokens, kLogits };  // one row per token of the step, or per row that needs logits

// What a buffer holds lives from the operation that writes it to the last that reads it. Where all of them belong to one stage
// the buffer is scratch: each piece of rows may put its own at the same place. Else it is kept, a row for every token.
struct Lifetime {
  Domain domain;
  int written_in = -1;  // stage
  bool kept = false;
  void write(int stage) { written_in = stage; }
  void read(int stage) { kept |= written_in != stage; }
};

// Buffers get their memory when the program is finished.
struct FloatBuffer : Lifetime {
  int64_t width;
  int64_t stride;  // floats from row to row: never a multiple of a page, where all rows would compete for one set of the cache
  Array<float> data;
  FloatBuffer(int64_t width, Domain domain) : Lifetime{domain}, width(width), stride((width + 15) / 16 * 16 + (width > 512 && (width + 15) / 16 % 2 == 0 ? 16 : 0)) {}
  float* row(int64_t i) const { return data.data() + i * stride; }
};

// Activations whose forms are the union of what their consumers read.
struct ActivationBuffer : Lifetime {
  int64_t k;
  unsigned want = 0;
  std::unique_ptr<Activations> data;
  ActivationBuffer(int64_t k, Domain domain) : Lifetime{domain}, k(k) {}
  QuantizedRow row(int64_t i) const { return data->row(i); }
};

struct StepContext {
  const BatchRows& rows;
  const KvPool& pool;
  std::span<const LogitRow> logit_rows;  // the block whose logits are computed now
  StepOutput& output;
  const Masks* masks;  // to wait for before sampling; null: none
  Span tokens;         // the rows of tokens to work on
  int64_t scratch;     // where they begin in buffers that are not kept
  int64_t count(Domain domain) const { return domain == Domain::kTokens ? tokens.end - tokens.begin : int64_t(logit_rows.size()); }
  int64_t first(const Lifetime& of) const { return of.domain == Domain::kLogits ? 0 : of.kept ? tokens.begin : scratch; }
};

class Op {
 public:
  virtual ~Op() = default;
  virtual const char* name() const = 0;
  virtual void touch(int stage) = 0;  // while recording: tells its buffers what it reads and writes
  virtual bool mixes_rows() const { return false; }  // a row needs what other rows of the step have left
  virtual void prepare(const StepContext&) {}        // on the compute thread, before the region
  virtual void run(Lane& lane, const StepContext& context) = 0;
};

struct EmbedOp final : Op {  // x[row] = scale * weight[token of the row]
  const char* name() const override { return "embed"; }
  void touch(int stage) override { x->write(stage); }
  std::shared_ptr<Weight> weight;
  float scale;
  FloatBuffer* x;
  void run(Lane&, const StepContext&) override;
};

// x[row] += delta[row] (or += rms_norm(delta[row]) * delta_norm); out[row] = rms_norm(x[row]) * weight, quantised.
// With an output in the logits domain only the rows that need logits are read.
struct NormOp final : Op {
  const char* name() const override { return "norm"; }
  void touch(int stage) override {
    x->read(stage), x->write(stage), out->write(stage);
    if (delta != nullptr) delta->read(stage);
  }
  FloatBuffer* x;
  FloatBuffer* delta = nullptr;
  std::vector<float> delta_norm, weight;
  float epsilon;
  ActivationBuffer* out;
  void run(Lane&, const StepContext&) override;
};

struct LinearOp final : Op {
  const char* name() const override { return "linear"; }
  void touch(int stage) override { input->read(stage), out->write(stage); }
  std::unique_ptr<Linear> linear;
  ActivationBuffer* input;
  FloatBuffer* out;
  void run(Lane&, const StepContext&) override;
};

struct BiasOp final : Op {  // x[row] += bias
  const char* name() const override { return "bias"; }
  void touch(int stage) override { x->read(stage), x->write(stage); }
  FloatBuffer* x;
  std::vector<float> bias;
  void run(Lane&, const StepContext&) override;
};

// qkv[row] = [query heads | key heads | value heads]: bias, norms and rotation in place; keys and values go to the pool.
struct HeadsOp final : Op {
  const char* name() const override { return "heads"; }
  void touch(int stage) override { qkv->read(stage), qkv->write(stage); }
  FloatBuffer* qkv;
  int layer, query_heads, rotary_dim;
  float epsilon;
  std::vector<float> bias, query_norm, key_norm;                   // each may be empty
  std::vector<float> query_balance, key_balance;                   // [kv_heads * head_dim], empty or reciprocal powers of two
  std::shared_ptr<const std::vector<float>> cosine, sine;          // [position][rotary_dim / 2]
  void run(Lane&, const StepContext&) override;

 private:
  void run_head(const StepContext&, int64_t row, int head) const;
};

struct AttentionOp final : Op {
  const char* name() const override { return "attention"; }
  void touch(int stage) override { qkv->read(stage), out->write(stage); }
  bool mixes_rows() const override { return true; }
  std::shared_ptr<Attention> attention;
  const AttentionPlan* plan;  // built by the program for this op's window
  int layer;
  AttentionShape shape;
  FloatBuffer *qkv, *out;
  void prepare(const StepContext&) override;
  void run(Lane&, const StepContext&) override;
};

enum class Gate : uint8_t { kSilu, kGeluTanh };

// out = quantise(x), or quantise(gate(x[0..k)) * x[k..2k)).
struct QuantiseOp final : Op {
  const char* name() const override { return gated ? "gate" : "quantise"; }
  void touch(int stage) override { x->read(stage), out->write(stage); }
  FloatBuffer* x;
  bool gated = false;
  Gate gate = Gate::kSilu;
  ActivationBuffer* out;
  void run(Lane&, const StepContext&) override;
};

struct SoftCapOp final : Op {  // x = cap * tanh(x / cap)
  const char* name() const override { return "soft_cap"; }
  void touch(int stage) override { x->read(stage), x->write(stage); }
  FloatBuffer* x;
  float cap;
  void run(Lane&, const StepContext&) override;
};

// Chooses ids, which go to the token table and to the step's output, and reports log-probabilities.
struct SampleOp final : Op {
  const char* name() const override { return "sample"; }
  void touch(int stage) override { logits->read(stage); }
  FloatBuffer* logits;
  Sampler* sampler;
  void prepare(const StepContext&) override;
  void run(Lane& lane, const StepContext& context) override {
    if (context.masks != nullptr) context.masks->wait();
    sampler->run(lane);
  }
};

}  // namespace sapwood
