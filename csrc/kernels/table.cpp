// Owns: the table of one instruction set. Compiled once per instruction set; knows only which families exist. Where there is a tile unit,
// all but the products of bytes are those of AVX-512 VNNI.
#include "kernels/tables.h"
#include "simd/simd.h"

namespace sapwood {
namespace isa_vnni { const KernelTable& table(); }

namespace SAPWOOD_ISA {

const KernelTable& table() {
  static const KernelTable filled = [] {
#if defined(SAPWOOD_ISA_AMX)
    KernelTable t = isa_vnni::table();
#else
    KernelTable t{};
#endif
    t.name = SAPWOOD_ISA_NAME;
    fill_code_linears(t);
    fill_wide_linears(t);
#if !defined(SAPWOOD_ISA_AMX)
    fill_float_linears(t);
    fill_row_kernels(t);
    fill_logit_kernels(t);
    fill_head_kernels(t);
    fill_store_kernels(t);
    fill_attention_kernels(t);
#endif
    return t;
  }();
  return filled;
}

}  // namespace SAPWOOD_ISA
}  // namespace sapwood
