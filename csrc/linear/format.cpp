#include "linear/format.h"

#include "core/error.h"

namespace sapwood {
namespace {

constexpr FormatInfo kFormats[] = {
    {"q4_0", Layout::kU4Offset, 32, 18, 32, sizeof(OffsetBlock<0>)},
    {"q4_1", Layout::kU4Min, 32, 20, 32, sizeof(MinBlock<0>)},
    {"q4_k", Layout::kU4Super, 256, 144, 256, sizeof(SuperBlock<0>)},
    {"q5_0", Layout::kU5Offset, 32, 22, 32, sizeof(OffsetBlock<1>)},
    {"q5_1", Layout::kU5Min, 32, 24, 32, sizeof(MinBlock<1>)},
    {"q5_k", Layout::kU5Super, 256, 176, 256, sizeof(SuperBlock<1>)},
    {"q6_k", Layout::kU6Super, 256, 210, 256, sizeof(SixBlock)},
    {"q8_0", Layout::kS8, 32, 34, 32, sizeof(WideBlock)},
    {"f16", Layout::kF16, 1, 2, 1, 2 * kPanelColumns},
    {"bf16", Layout::kBF16, 1, 2, 1, 2 * kPanelColumns},
    {"f32", Layout::kF32, 1, 4, 1, 4 * kPanelColumns},
};

constexpr int64_t kMaxSide = int64_t(1) << 31;  // keeps every product below in int64

}  // namespace

const FormatInfo& info(Format format) { return kFormats[size_t(format)]; }

Format format_named(const std::string& name) {
  std::string known;
  for (size_t i = 0; i < std::size(kFormats); i++) {
    if (name == kFormats[i].name) return Format(i);
    known += (i ? ", " : "") + std::string(kFormats[i].name);
  }
  throw Error("weight format '" + name + "' has no packed layout; known: " + known);
}

int64_t raw_bytes(Format format, int64_t rows, int64_t k) {
  const FormatInfo& f = info(format);
  require(rows > 0 && k > 0 && rows < kMaxSide && k < kMaxSide,
          "a weight needs 1 to 2^31 rows and columns, not " + std::to_string(rows) + " x " + std::to_string(k));
  require(k % f.block_weights == 0, std::string(f.name) + " stores blocks of " + std::to_string(f.block_weights) +
                                        " weights; rows of " + std::to_string(k) + " cannot be stored in it");
  const int64_t blocks = k / f.block_weights;
  require(blocks <= (int64_t(1) << 46) / rows, "a weight of " + std::to_string(rows) + " x " + std::to_string(k) + " is too large");
  return rows * blocks * f.block_bytes;
}

int64_t packed_bytes(Format format, int64_t rows, int64_t k) {
  raw_bytes(format, rows, k);
  const FormatInfo& f = info(format);
  return panel_count(rows) * (k / f.packed_group_weights) * f.packed_bytes;
}

}  // namespace sapwood
