// Owns: the table of kernels that each instruction set fills, and the argument structs that cross the seam.
// Invariant: a kernel writes only its share (panels, rows or chunks) and a row's result does not depend on that share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attend.h"
#include "linear/codes8.h"
#include "linear/layout.h"

namespace sapwood {

// Rows of activations in the forms that the linears read; see linear/activations.h for who owns the memory.
struct ActivationView {
  Codes8 first, rest;                 // `rest` are the codes of what `first` leaves of a number; no codes: it is left out
  const int16_t* codes13 = nullptr;   // [row][padded K], +-4095
  const float* scale13 = nullptr;     // [row][groups]
  const float* values = nullptr;      // [row][padded K], the unquantised numbers
  int64_t padded_k = 0, groups = 0, led_words = 0;
};

struct LinearArgs {
  const std::byte* weights;
  ActivationView input;
  int64_t k, columns;       // K elements and valid output columns of this weight
  int rows;
  float* out;               // [row][out_stride]
  int64_t out_stride;
  int64_t panel_begin, panel_end;
};

enum : unsigned { kWant8 = 1, kWant13 = 2, kWantValues = 4, kWantRest = 8 };  // the rest only beside kWant8

// Where a row kernel leaves its result: any mixture of the forms above.
struct QuantizedRow {
  unsigned want;
  Codes8 first, rest;
  int16_t* codes13;
  float* scale13;
  float* values;
};

struct KernelTable {
  const char* name;
  void (*linear[kLayoutCount])(const LinearArgs&);
  // One row of k numbers -> the forms that `out.want` names, zero-padded to whole groups.
  void (*quantize)(const float* x, int64_t k, const QuantizedRow& out);
  void (*rms_norm)(const float* x, const float* weight, int64_t k, float epsilon, const QuantizedRow& out);
  void (*silu_gate)(const float* gate, const float* up, int64_t k, const QuantizedRow& out);
  void (*gelu_gate)(const float* gate, const float* up, int64_t k, const QuantizedRow& out);
  void (*add_rows)(float* residual, const float* delta, int64_t k);  // residual += delta
  void (*attend_chunk)(const ChunkArgs&);
  void (*fold_partials)(const FoldArgs&);
  void (*finish_vector)(const float* output, float sum, int head_dim, float* out);
  void (*prepare_head)(const HeadArgs&);
  void (*store_token)(const StoreArgs&);
  void (*soft_cap)(float* x, int64_t n, float cap);  // x = cap * tanh(x / cap)
float (*largest)(const float* x, int64_t n);       // NaN is passed over; -inf where nothing is left
  // Weights w = e^((x - highest) / temperature), and the sum of round(w * 2^44) over those with w >= lightest.
  void (*weights)(const float* x, int64_t n, float highest, float temperature, float* out);
  uint64_t (*mass)(const float* x, int64_t n, float highest, float temperature, float lightest);
  void (*add_normed)(float* residual, const float* delta, const float* weight, int64_t k, float epsilon);  // += rms_norm(delta)
};

// The tables that this build has and this processor supports, the best one first; the last one is portable.
const std::vector<const KernelTable*>& supported_kernels();

// The chosen table: the best one that the processor supports until `select_kernels(name)` says otherwise ("auto" resets).
const KernelTable& kernels();
void select_kernels(const char* name);

}  // namespace sapwood
