// Owns: the weight formats that files contain (named as in GGUF), their block sizes, and the packed layout of each.
// Invariant: `raw_bytes` is exact; a tensor of another size is refused before a byte of it is read.
#pragma once
#include <cstdint>
#include <string>

#include "linear/layout.h"

namespace sapwood {

enum class Format : uint8_t { kQ4_0, kQ4_1, kQ4_K, kQ5_0, kQ5_1, kQ5_K, kQ6_K, kQ8_0, kF16, kBF16, kF32 };

struct FormatInfo {
  const char* name;
  Layout layout;
  int block_weights, block_bytes;          // in the file
  int packed_group_weights, packed_bytes;  // per panel: one packed block covers 16 columns x packed_group_weights
};

const FormatInfo& info(Format format);
Format format_named(const std::string& name);                          // throws Error on an unknown name
int64_t raw_bytes(Format format, int64_t rows, int64_t k);             // throws Error where sizes do not fit the format
int64_t packed_bytes(Format format, int64_t rows, int64_t k);
inline int64_t panel_count(int64_t columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }

}  // namespace sapwood
