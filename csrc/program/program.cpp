#include "program/program.h"

#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/offer.h"

namespace sapwood {
namespace {

void require_size(const std::vector<float>& v, int64_t size, const char* what) {
  require(int64_t(v.size()) == size, std::string(what) + " needs " + std::to_string(size) + " numbers, not " + std::to_string(v.size()));
}

}  // namespace

Program::Program(std::shared_ptr<ThreadPool> pool, std::shared_ptr<KvPool> kv, const StepLimits& limits, std::shared_ptr<HostPages> host)
    : pool_(std::move(pool)), kv_(std::move(kv)), host_(host ? std::move(host) : std::make_shared<HostPages>()), tables_(limits, *kv_), sampler_(limits.slots, limits.vocabulary, limits.max_logit_rows, pool_->lanes()) {
  require(host_->pages() == 0 || kv_->kinds() == 1, "host pages hold all layers of a page; a pool with window pages has none");
}

int64_t Program::capacity(Domain domain) const {
  return domain == Domain::kTokens ? tables_.limits().max_rows : tables_.limits().max_logit_rows;
}

void Program::recording() const { require(!finished_, "the program is finished; record a new one"); }

FloatBuffer& Program::buffer(int index) {
  require(index >= 0 && size_t(index) < buffers_.size(), "there is no buffer " + std::to_string(index));
  return *buffers_[size_t(index)];
}

const FloatBuffer& Program::kept_buffer(int index) {
  const FloatBuffer& b = buffer(index);
  require(b.kept || b.domain == Domain::kLogits, "the rows of buffer " + std::to_string(index) + " are gone when the step ends");
  return b;
}

ActivationBuffer& Program::activations(int index) {
  require(index >= 0 && size_t(index) < activations_.size(), "there are no activations " + std::to_string(index));
  return *activations_[size_t(index)];
}

int Program::add_buffer(int64_t width, Domain domain) {
  recording();
  require(width > 0 && width < (1 << 24), "a buffer needs a width of 1 to 2^24, not " + std::to_string(width));
  buffers_.push_back(std::make_unique<FloatBuffer>(width, domain));
  return int(buffers_.size()) - 1;
}

int Program::add_activations(int64_t k, Domain domain) {
  recording();
  activations_.push_back(std::make_unique<ActivationBuffer>(k, domain));
  return int(activations_.size()) - 1;
}

void Program::embed(std::shared_ptr<Weight> weight, float scale, int x) {
  FloatBuffer& to = buffer(x);
  require(weight->k() == to.width && to.domain == Domain::kTokens, "embedding rows and their buffer must have the same width");
  require(weight->rows() >= tables_.limits().vocabulary, "the embedding has fewer rows than the vocabulary");
  auto op = std::make_unique<EmbedOp>();
  op->weight = std::move(weight), op->scale = scale, op->x = &to;
  record(std::move(op), Domain::kTokens);
}

void Program::norm(NormSpec spec) {
  auto op = std::make_unique<NormOp>();
  op->x = &buffer(spec.x), op->out = &activations(spec.out);
  require(op->x->domain == Domain::kTokens && op->out->k == op->x->width, "a norm reads token rows and keeps their width");
  require_size(spec.weight, op->x->width, "the norm's weight");
  if (!spec.delta_norm.empty()) require_size(spec.delta_norm, op->x->width, "the norm of the added rows");
  if (spec.delta >= 0) {
    op->delta = &buffer(spec.delta);
    require(op->delta->width == op->x->width && op->delta->domain == Domain::kTokens, "added rows must be as wide as the residual");
  }
  op->weight = std::move(spec.weight), op->delta_norm = std::move(spec.delta_norm), op->epsilon = spec.epsilon;
  const Domain domain = op->out->domain;
  record(std::move(op), domain);
}

void Program::linear(std::vector<std::shared_ptr<Weight>> weights, int input, int out) {
  auto op = std::make_unique<LinearOp>();
  op->linear = std::make_unique<Linear>(std::move(weights));
  op->input = &activations(input), op->out = &buffer(out);
  require(op->linear->k() == op->input->k && op->linear->columns() == op->out->width && op->input->domain == op->out->domain,
          "a linear of " + std::to_string(op->linear->k()) + " x " + std::to_string(op->linear->columns()) + " does not fit its buffers (" +
              std::to_string(op->input->k) + " -> " + std::to_string(op->out->width) + ")");
  op->input->want |= op->linear->want();
  const Domain domain = op->out->domain;
  record(std::move(op), domain);
}

void Program::bias(int x, std::vector<float> numbers) {
  auto op = std::make_unique<BiasOp>();
  op->x = &buffer(x);
  require_size(numbers, op->x->width, "the bias");
  op->bias = std::move(numbers);
  const Domain domain = op->x->domain;
  record(std::move(op), domain);
}

void Program::heads(HeadsSpec spec) {
  const KvShape& kv = kv_->shape();
  auto op = std::make_unique<HeadsOp>();
  op->qkv = &buffer(spec.qkv);
  const int64_t width = int64_t(spec.query_heads + 2 * kv.kv_heads) * kv.head_dim;
  require(spec.query_heads > 0 && spec.layer >= 0 && spec.layer < kv.layers && op->qkv->domain == Domain::kTokens && op->qkv->width == width,
          "q|k|v rows of layer " + std::to_string(spec.layer) + " must be " + std::to_string(width) + " wide");
  require(spec.rotary_dim >= 0 && spec.rotary_dim <= kv.head_dim && spec.rotary_dim % 2 == 0, "rotary_dim must be even and within the head");
  const int64_t table = int64_t(tables_.limits().max_len) * (spec.rotary_dim / 2);
  require_size(*spec.cosine, table, "the cosine table"), require_size(*spec.sine, table, "the sine table");
  if (!spec.bias.empty()) require_size(spec.bias, width, "the q|k|v bias");
  if (!spec.query_norm.empty()) require_size(spec.query_norm, kv.head_dim, "the query norm");
  if (!spec.key_norm.empty()) require_size(spec.key_norm, kv.head_dim, "the key norm");
  op->layer = spec.layer, op->query_heads = spec.query_heads, op->rotary_dim = spec.rotary_dim, op->epsilon = spec.epsilon;
  op->bias = std::move(spec.bias), op->query_norm = std::move(spec.query_norm), op->key_norm = std::move(spec.key_norm);
  if (!spec.balance.empty()) require_size(spec.balance, int64_t(kv.kv_heads) * kv.head_dim, "the balance of keys");
  for (float x : spec.balance) {
    int exponent;
    require(std::isfinite(x) && x > 0 && std::frexp(x, &exponent) == 0.5f && std::abs(exponent) < 64, "keys are balanced by powers of two");
    op->key_balance.push_back(1.f / x);
  }
  require(spec.query_heads % kv.kv_heads == 0, "query heads must be shared out evenly over kv heads");
  op->query_balance = std::move(spec.balance);
  op->cosine = std::move(spec.cosine), op->sine = std::move(spec.sine);
  record(std::move(op), Domain::kTokens);
}

const AttentionPlan* Program::plan_for(int window, int group, int kind) {
  for (const auto& p : plans_)
    if (p->options.window == window && p->kind == kind) return &p->plan;
  plans_.push_back(std::make_unique<WindowPlan>());
  plans_.back()->kind = kind, plans_.back()->options = {group, kv_->shape().kv_heads, window, pool_->lanes()};
  return &plans_.back()->plan;
}

void Program::attention(int qkv, int out, int layer, const AttentionShape& shape) {
  const KvShape& kv = kv_->shape();
  FloatBuffer &from = buffer(qkv), &to = buffer(out);
  require(shape.window >= 0 && layer >= 0 && layer < kv.layers && shape.query_heads > 0, "attention needs an existing layer and a window of at least 0");
  require(from.width == int64_t(shape.query_heads + 2 * kv.kv_heads) * kv.head_dim && to.width == int64_t(shape.query_heads) * kv.head_dim &&
              from.domain == Domain::kTokens && to.domain == Domain::kTokens,
          "attention's buffers do not fit its heads");
  if (!attention_) attention_ = std::make_shared<Attention>(kv, shape.query_heads, pool_->lanes());
  auto op = std::make_unique<AttentionOp>();
  op->attention = attention_, op->plan = plan_for(shape.window, shape.query_heads / kv.kv_heads, kv_->kind(layer));
  op->layer = layer, op->shape = shape, op->qkv = &from, op->out = &to;
  record(std::move(op), Domain::kTokens);
}

void Program::quantise(int x, int out) {
  auto op = std::make_unique<QuantiseOp>();
  op->x = &buffer(x), op->out = &activations(out);
  require(op->x->width == op->out->k && op->x->domain == op->out->domain, "quantised rows keep their width");
  const Domain domain = op->out->domain;
  record(std::move(op), domain);
}

void Program::gate(int x, Gate kind, int out) {
  auto op = std::make_unique<QuantiseOp>();
  op->x = &buffer(x), op->out = &activations(out), op->gated = true, op->gate = kind;
  require(op->x->width == 2 * op->out->k && op->x->domain == op->out->domain, "a gate reads gate|up, twice as wide as its output");
  const Domain domain = op->out->domain;
  record(std::move(op), domain);
}

void Program::soft_cap(int x, float cap) {
  require(cap > 0, "a soft cap must be positive");
  auto op = std::make_unique<SoftCapOp>();
  op->x = &buffer(x), op->cap = cap;
  const Domain domain = op->x->domain;
  record(std::move(op), domain);
}

void Program::sample(int logits) {
  auto op = std::make_unique<SampleOp>();
  op->logits = &buffer(logits), op->sampler = &sampler_;
  require(op->logits->domain == Domain::kLogits && op->logits->width >= tables_.limits().vocabulary, "sampling reads logits of the whole vocabulary");
  record(std::move(op), Domain::kLogits);
}

void Program::record(std::unique_ptr<Op> op, Domain domain) {
  recording();
  require(domain == Domain::kLogits || tail_ < 0, "operations on tokens come before those on logits");
  if (domain == Domain::kLogits && tail_ < 0) tail_ = int64_t(ops_.size()), stage_++;
  stage_ += op->mixes_rows();
  op->touch(stage_);
  stage_ += op->mixes_rows();
  ops_.push_back(std::move(op));
}

void Program::widen_activations() {
  recording();
  wide_ = true;
}

void Program::cut_rows(int64_t piece_rows) {
  recording();
  require(piece_rows >= 0 && piece_rows < (1 << 20), "a piece has 0 to 2^20 rows, not " + std::to_string(piece_rows));
  piece_rows_ = piece_rows;
}

// A stage ends before and after an operation that mixes rows, and where those on logits begin.
void Program::cut_stages() {
  const int64_t end = int64_t(ops_.size()), tail = tail_ < 0 ? end : tail_;
  tail_stage_ = SIZE_MAX;
  for (int64_t i = 0; i < end; i++) {
    const bool mixes = ops_[size_t(i)]->mixes_rows() || i >= tail;
    if (i == tail) tail_stage_ = stages_.size();
    if (i > 0 && i != tail && !mixes && !stages_.back().mixes_rows) stages_.back().ops.end = i + 1;
    else if (i > tail) stages_.back().ops.end = i + 1;
    else stages_.emplace_back(Span{i, i + 1}, mixes);
  }
  tail_stage_ = std::min(tail_stage_, stages_.size());
}

void Program::allocate() {
  const int64_t scratch = 2 * piece_rows_ * pool_->lanes();
  const auto rows_of = [&](const Lifetime& b) {
    const int64_t rows = capacity(b.domain);
    return b.domain == Domain::kLogits || b.kept || piece_rows_ == 0 ? rows : std::min(rows, scratch);
  };
  for (auto& b : buffers_) b->data = Array<float>(size_t(rows_of(*b) * b->stride));
  for (auto& a : activations_) {
    require(a->want != 0, "activations that no linear reads cannot be recorded");
    a->data = std::make_unique<Activations>(rows_of(*a), a->k, a->want | (wide_ && a->want & kWant8 ? kWantRest : 0u));
  }
}

void Program::finish() {
  recording();
  allocate();
  cut_stages();
  finished_ = true;
}

void Program::check(const Step& step) const {
  require(finished_, "finish the program before running it");
  tables_.check(step);
  host_->check(*kv_, step.saves, step.loads);
}

// 0 where the lanes share operations.
int64_t Program::count_pieces(int64_t rows) const {
  const int64_t lanes = pool_->lanes();
  if (piece_rows_ == 0 || rows < lanes * piece_rows_ * 3 / 4) return 0;
  return lanes * std::max<int64_t>(1, rows / (lanes * piece_rows_));
}

void Program::run_ops(Lane& lane, const Span& ops, const StepContext& context) {
  using Clock = std::chrono::steady_clock;
  const bool timed = profiling_ && lane.is_caller;
  auto before = timed ? Clock::now() : Clock::time_point();
  for (int64_t i = ops.begin; i < ops.end; i++) {
    Op& op = *ops_[size_t(i)];
    op.run(lane, context);
    offer_core();
    if (!timed) continue;
    const auto now = Clock::now();
    profile_[op.name()] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
    before = now;
  }
}

void Program::run_stage(Lane& lane, const Stage& stage, const StepContext& context) {
  const int64_t rows = context.count(Domain::kTokens), pieces = stage.mixes_rows ? 0 : count_pieces(rows);
  if (pieces == 0) return run_ops(lane, stage.ops, context);
  StepContext piece = context;
  piece.scratch = lane.index * 2 * piece_rows_;
  Lane alone = lane.alone();
  lane.divide(pieces, 1, [&](Span taken) {
    piece.tokens = {rows * taken.begin / pieces, rows * taken.end / pieces};
    run_ops(alone, stage.ops, piece);
  });
}

void Program::run_stages(size_t first, size_t end, const StepContext& context) {
  for (size_t s = first; s < end; s++)
    for (int64_t i = stages_[s].ops.begin; i < stages_[s].ops.end; i++) ops_[size_t(i)]->prepare(context);
  pool_->run([&](Lane& lane) {
    for (size_t s = first; s < end; s++) run_stage(lane, stages_[s], context);
  });
}

StepOutput Program::run(const Step& step) {
  StepOutput output;
  for (const auto& start : step.starts) sampler_.start(start);
  host_->carry(*pool_, *kv_, step.saves, step.loads);
  tables_.apply(step);
  rows_.expand(step, tables_, sampler_, output);
  if (rows_.tokens.empty()) return output;
  for (auto& p : plans_) p->plan.build(rows_.kinds[size_t(p->kind)].segments, p->options);
  const std::span<const LogitRow> all = rows_.logit_rows;
  const size_t most = size_t(tables_.limits().max_logit_rows);
  last_block_ = int64_t(std::min(all.size(), most));
  const StepContext context{rows_, *kv_, all.first(size_t(last_block_)), output, step.masks.get(), {0, int64_t(rows_.tokens.size())}, 0};
  run_stages(0, all.empty() ? tail_stage_ : stages_.size(), context);
  for (size_t done = size_t(last_block_); done < all.size(); done += size_t(last_block_)) {
    last_block_ = int64_t(std::min(all.size() - done, most));
    StepContext block = context;
    block.logit_rows = all.subspan(done, size_t(last_block_));
    run_stages(tail_stage_, stages_.size(), block);
  }
  return output;
}

}  // namespace sapwood
