#include "linear/linear.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "linear/pack.h"
#include "linear/quantise.h"

namespace sapwood {

Weight::Weight(Format format, int64_t rows, int64_t k, int64_t padded_k)
    : format_(format), rows_(rows), k_(k), padded_k_(padded_k), packed_(size_t(packed_bytes(format, rows, padded_k))) {}

std::shared_ptr<Weight> Weight::pack(Format format, const std::byte* raw, int64_t raw_size, int64_t rows, int64_t k, ThreadPool& pool) {
  const int64_t expected = raw_bytes(format, rows, k);
  require(raw_size == expected, std::string("a ") + info(format).name + " weight of " + std::to_string(rows) + " x " + std::to_string(k) +
                                    " takes " + std::to_string(expected) + " bytes, not " + std::to_string(raw_size));
  std::shared_ptr<Weight> weight(new Weight(format, rows, k, k));
  const PackJob job{raw, rows, k, weight->packed_.data()};
  pool.run([&](Lane& lane) {
    const Span share = lane.share(weight->panels());
    pack_panels(format, job, share.begin, share.end);
  });
  return weight;
}

std::shared_ptr<Weight> Weight::quantise(Format format, const float* values, int64_t rows, int64_t k, ThreadPool& pool) {
  require(format == Format::kQ8_0 || format == Format::kQ4_1, "weights are quantised at load to q8_0 or q4_1, not " + std::string(info(format).name));
  raw_bytes(Format::kF32, rows, k);  // refuses sizes out of range
  const int64_t padded = (k + kGroup - 1) / kGroup * kGroup, row_bytes = raw_bytes(format, 1, padded);
  std::shared_ptr<Weight> weight(new Weight(format, rows, k, padded));
  pool.run([&](Lane& lane) {
    std::vector<std::byte> panel(size_t(row_bytes) * kPanelColumns);
    const Span share = lane.share(weight->panels());
    for (int64_t p = share.begin; p < share.end; p++) {  // a panel at a time: no second copy of the whole matrix
      const int64_t first = p * kPanelColumns, count = std::min<int64_t>(kPanelColumns, rows - first);
      for (int64_t r = 0; r < count; r++) quantise_row(format, values + (first + r) * k, k, panel.data() + r * row_bytes);
      pack_panels(format, {panel.data(), count, padded, weight->packed_.data() + p * packed_bytes(format, 1, padded)}, 0, 1);
    }
  });
  return weight;
}

std::shared_ptr<Weight> Weight::from_packed(Format format, const std::byte* packed, int64_t size, int64_t rows, int64_t k, ThreadPool& pool) {
  raw_bytes(Format::kF32, rows, k);  // refuses sizes out of range
  const bool pads = format == Format::kQ8_0 || format == Format::kQ4_1;  // the formats of `quantise`
  const int64_t padded = pads ? (k + kGroup - 1) / kGroup * kGroup : k, expected = packed_bytes(format, rows, padded);
  require(size == expected, std::string("a packed ") + info(format).name + " weight of " + std::to_string(rows) + " x " + std::to_string(k) +
                                " takes " + std::to_string(expected) + " bytes, not " + std::to_string(size));
  std::shared_ptr<Weight> weight(new Weight(format, rows, k, padded));
  pool.run([&](Lane& lane) {
    const Span share = lane.share(size);
    std::memcpy(weight->packed_.data() + share.begin, packed + share.begin, size_t(share.end - share.begin));
  });
  return weight;
}

unsigned Weight::want() const {
  switch (info(format_).layout) {
    case Layout::kS8: return kWant13;
    case Layout::kF16: case Layout::kBF16: case Layout::kF32: return kWantValues;
    default: return kWant8;
  }
}

void Weight::read_row(int64_t row, float* out) const {
  require(row >= 0 && row < rows_, "row " + std::to_string(row) + " is outside a weight of " + std::to_string(rows_) + " rows");
  if (padded_k_ == k_) return unpack_column(format_, packed_.data(), k_, row, out);
  std::vector<float> padded(static_cast<size_t>(padded_k_));
  unpack_column(format_, packed_.data(), padded_k_, row, padded.data());
  std::copy_n(padded.begin(), k_, out);
}

Linear::Linear(std::vector<std::shared_ptr<Weight>> weights) : weights_(std::move(weights)) {
  require(!weights_.empty(), "a linear needs at least one weight");
  for (const auto& w : weights_) {
    require(w->k() == k(), "weights side by side must read the same input: " + std::to_string(w->k()) + " is not " + std::to_string(k()));
    columns_ += w->rows();
    panels_ += w->panels();
    want_ |= w->want();
  }
}

size_t Linear::size_bytes() const {
  size_t sum = 0;
  for (const auto& w : weights_) sum += w->size_bytes();
  return sum;
}

void Linear::run_panels(Span panels, const ActivationView& input, int rows, float* out, int64_t out_stride) const {
  const KernelTable& table = kernels();
  int64_t first = 0, offset = 0;
  for (const auto& w : weights_) {
    const int64_t begin = std::max(panels.begin - first, int64_t(0)), end = std::min(panels.end - first, w->panels());
    if (begin < end)
      table.linear[int(info(w->format()).layout)]({w->data(), input, w->k(), w->rows(), rows, out + offset, out_stride, begin, end});
    first += w->panels();
    offset += w->rows();
  }
}

void Linear::run(Lane& lane, const ActivationView& input, int rows, float* out, int64_t out_stride) const {
  if (rows == 0) return;
  const int64_t least = rows > kStreamRows ? 2 : kStreamBytes * panels_ / int64_t(size_bytes()) + 1;
  lane.divide(panels_, std::max(least, panels_ / (12 * lane.count)), [&](Span span) { run_panels(span, input, rows, out, out_stride); });
}

}  // namespace sapwood
