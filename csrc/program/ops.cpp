#include "program/ops.h"

namespace sapwood {
namespace {

constexpr int64_t kLeastHeads = 4;  // fewer are done before another lane has taken any

const float* or_null(const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); }

}  // namespace

void EmbedOp::run(Lane& lane, const StepContext& context) {
  lane.each(context.count(x->domain), [&](int64_t row) {
    float* to = x->row(context.first(*x) + row);
    weight->read_row(context.rows.tokens[size_t(context.tokens.begin + row)], to);
    if (scale == 1.f) return;
    for (int64_t i = 0; i < x->width; i++) to[i] *= scale;
  });
}

void NormOp::run(Lane& lane, const StepContext& context) {
  const KernelTable& table = kernels();
  lane.each(context.count(out->domain), [&](int64_t i) {
    const auto at = [&](const FloatBuffer& b) { return b.row(out->domain == b.domain ? context.first(b) + i : context.logit_rows[size_t(i)].row); };
    float* residual = at(*x);
    if (delta != nullptr && delta_norm.empty()) table.add_rows(residual, at(*delta), x->width);
    if (delta != nullptr && !delta_norm.empty()) table.add_normed(residual, at(*delta), delta_norm.data(), x->width, epsilon);
    table.rms_norm(residual, weight.data(), x->width, epsilon, out->row(context.first(*out) + i));
  });
}

void LinearOp::run(Lane& lane, const StepContext& context) {
  linear->run(lane, input->data->view(context.first(*input)), int(context.count(out->domain)), out->row(context.first(*out)), out->stride);
}

void BiasOp::run(Lane& lane, const StepContext& context) {
  lane.each(context.count(x->domain), [&](int64_t row) { kernels().add_rows(x->row(context.first(*x) + row), bias.data(), x->width); });
}

// Heads of a row: query heads, then one item per kv head, which prepares the key and stores key and value.
void HeadsOp::run_head(const StepContext& context, int64_t row, int head) const {
  const KvShape& kv = context.pool.shape();
  const int64_t position = context.rows.positions[size_t(row)];
  const float* cos_row = cosine->data() + position * (rotary_dim / 2);
  const float* sin_row = sine->data() + position * (rotary_dim / 2);
  const float* bias_of = or_null(bias);
  const auto at = [&](int h) { return qkv->row(row) + int64_t(h) * kv.head_dim; };
  const auto bias_at = [&](int h) { return bias_of ? bias_of + int64_t(h) * kv.head_dim : nullptr; };
  const bool query = head < query_heads;
  kernels().prepare_head({at(head), bias_at(head), or_null(query ? query_norm : key_norm), epsilon, cos_row, sin_row, kv.head_dim, rotary_dim});
  if (!key_balance.empty()) {  // exact, and of no effect on q . k
    const int kv_head = query ? head / (query_heads / kv.kv_heads) : head - query_heads;
    const float* by = (query ? query_balance : key_balance).data() + int64_t(kv_head) * kv.head_dim;
    for (int d = 0; d < kv.head_dim; d++) at(head)[d] *= by[d];
  }
  if (query) return;
  const int value = head + kv.kv_heads;
  if (bias_of) kernels().prepare_head({at(value), bias_at(value), nullptr, 0, nullptr, nullptr, kv.head_dim, 0});
  context.pool.store(layer, context.rows.kinds[size_t(context.pool.kind(layer))].locations[size_t(row)], head - query_heads, at(head), at(value));
}

void HeadsOp::run(Lane& lane, const StepContext& context) {
  const int heads = query_heads + context.pool.shape().kv_heads;
  const auto run = [&](int64_t i) { run_head(context, context.tokens.begin + i / heads, int(i % heads)); };
  lane.each(context.count(Domain::kTokens) * heads, run, kLeastHeads);
}

void AttentionOp::prepare(const StepContext&) { attention->prepare(*plan); }

void AttentionOp::run(Lane& lane, const StepContext& context) {
  attention->run(lane, {*plan, context.pool, layer, shape, qkv->data.data(), qkv->stride, out->data.data(), out->stride});
}

void QuantiseOp::run(Lane& lane, const StepContext& context) {
  const KernelTable& table = kernels();
  lane.each(context.count(out->domain), [&](int64_t row) {
    const float* from = x->row(context.first(*x) + row);
    const QuantizedRow to = out->row(context.first(*out) + row);
    if (!gated) table.quantize(from, out->k, to);
    else (gate == Gate::kSilu ? table.silu_gate : table.gelu_gate)(from, from + out->k, out->k, to);
  });
}

void SoftCapOp::run(Lane& lane, const StepContext& context) {
  lane.each(context.count(x->domain), [&](int64_t row) { kernels().soft_cap(x->row(context.first(*x) + row), x->width, cap); });
}

void SampleOp::prepare(const StepContext& context) {
  sampler->prepare(context.logit_rows.data(), context.count(Domain::kLogits), logits->data.data(), logits->stride, context.output);
}

}  // namespace sapwood
