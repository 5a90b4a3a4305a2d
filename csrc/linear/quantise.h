// Owns: rounding unquantised weights to the blocks of Q8_0 and Q4_1 when a model is loaded.
// Invariant: codes are the nearest ones for the scale and minimum as stored (already rounded to fp16).
#pragma once
#include <cstddef>

#include "linear/format.h"

namespace sapwood {

// `values[0..k)` -> blocks of 32, the last one filled up with zeros. `format` is kQ8_0 or kQ4_1.
void quantise_row(Format format, const float* values, int64_t k, std::byte* blocks);

}  // namespace sapwood
