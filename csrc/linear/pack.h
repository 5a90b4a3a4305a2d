// Owns: the lossless way from a file's blocks to packed panels, and back to numbers for one column.
#pragma once
#include <cstddef>

#include "linear/format.h"

namespace sapwood {

struct PackJob {
  const std::byte* raw;   // `rows` rows of the file's format, one after another
  int64_t rows, k;
  std::byte* packed;      // packed_bytes(format, rows, k), zeroed: padding columns stay zero
};

// Packs panels [begin, end); panels are independent, so lanes may share them out.
void pack_panels(Format format, const PackJob& job, int64_t begin, int64_t end);

// out[0..k) = weights of one output column (one row of the file), exactly as the file's format defines them in fp32.
void unpack_column(Format format, const std::byte* packed, int64_t k, int64_t column, float* out);

}  // namespace sapwood
