// Owns: the table of one instruction set. Compiled once per instruction set; knows only which families exist.
#include "kernels/tables.h"
#include "simd/simd.h"

namespace sapwood::SAPWOOD_ISA {

const KernelTable& table() {
  static const KernelTable filled = [] {
    KernelTable t{};
    t.name = SAPWOOD_ISA_NAME;
    fill_code_linears(t);
    fill_wide_linears(t);
    fill_float_linears(t);
    fill_row_kernels(t);
    fill_logit_kernels(t);
    fill_head_kernels(t);
    fill_store_kernels(t);
    fill_attention_kernels(t);
    return t;
  }();
  return filled;
}

}  // namespace sapwood::SAPWOOD_ISA
