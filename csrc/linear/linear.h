// Owns: one packed weight matrix, and the product of several matrices with the same input as one piece of parallel work.
// Invariant: columns are split between lanes, K never is; out[row][column] does not depend on rows, lanes or the split.
#pragma once
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "linear/activations.h"
#include "linear/format.h"

namespace sapwood {

class Weight : public std::enable_shared_from_this<Weight> {
 public:
  // Packs `raw_size` bytes of `rows` x `k` weights (rows = output columns). Throws Error where the size does not match.
  static std::shared_ptr<Weight> pack(Format format, const std::byte* raw, int64_t raw_size, int64_t rows, int64_t k, ThreadPool& pool);

  // Quantises `rows` x `k` floats to kQ8_0 or kQ4_1 and packs them; k need not be a multiple of the group.
  static std::shared_ptr<Weight> quantise(Format format, const float* values, int64_t rows, int64_t k, ThreadPool& pool);

  // A copy of what `packed()` of an equal weight held. Throws Error where the size does not match.
  static std::shared_ptr<Weight> from_packed(Format format, const std::byte* packed, int64_t size, int64_t rows, int64_t k, ThreadPool& pool);

  Format format() const { return format_; }
  int64_t rows() const { return rows_; }
  int64_t k() const { return k_; }
  int64_t panels() const { return panel_count(rows_); }
  size_t size_bytes() const { return packed_.size(); }
  unsigned want() const;  // the form of activations that its kernel reads
  const std::byte* data() const { return packed_.data(); }
  void read_row(int64_t row, float* out) const;  // out[0..k): row `row` as fp32

 private:
  Weight(Format format, int64_t rows, int64_t k, int64_t padded_k);
  Format format_;
  int64_t rows_, k_, padded_k_;  // packed with padded_k_ >= k_ columns of which the last are zero
  Buffer packed_;
};

// out[row][offset + column] for weights side by side: q|k|v or gate|up, whatever their formats.
class Linear {
 public:
  explicit Linear(std::vector<std::shared_ptr<Weight>> weights);

  int64_t k() const { return weights_[0]->k(); }
  int64_t columns() const { return columns_; }
  unsigned want() const { return want_; }
  size_t size_bytes() const;

  // Every lane calls it with the same arguments and its own Lane; the product is whole when it returns.
  void run(Lane& lane, const ActivationView& input, int rows, float* out, int64_t out_stride) const;

 private:
  static constexpr int kStreamRows = 8;                // bandwidth-bound up to here:
  static constexpr int64_t kStreamBytes = 48 << 10;    // a lane reads at least so much in a row
  void run_panels(Span panels, const ActivationView& input, int rows, float* out, int64_t out_stride) const;

  std::vector<std::shared_ptr<Weight>> weights_;
  int64_t columns_ = 0, panels_ = 0;
  unsigned want_ = 0;
};

}  // namespace sapwood
