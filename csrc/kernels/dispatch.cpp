// Owns: which instruction set's kernels run. Decided once from the processor, or by name for tests and comparisons.
#include <atomic>
#include <string>

#include "core/error.h"
#include "kernels/kernels.h"

namespace sapwood {
namespace isa_portable { const KernelTable& table(); }
#if defined(SAPWOOD_BUILD_X86)
namespace isa_avx2 { const KernelTable& table(); }
namespace isa_vnni { const KernelTable& table(); }
#endif

const KernelTable& portable_kernels() { return isa_portable::table(); }

const KernelTable* avx2_kernels() {
#if defined(SAPWOOD_BUILD_X86)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return &isa_avx2::table();
#endif
  return nullptr;
}

const KernelTable* vnni_kernels() {
#if defined(SAPWOOD_BUILD_X86)
  if (avx2_kernels() && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"))
    return &isa_vnni::table();
#endif
  return nullptr;
}

namespace {

const KernelTable* best() {
  if (const auto* t = vnni_kernels()) return t;
  if (const auto* t = avx2_kernels()) return t;
  return &portable_kernels();
}

std::atomic<const KernelTable*>& chosen() {
  static std::atomic<const KernelTable*> table{best()};
  return table;
}

}  // namespace

const KernelTable& kernels() { return *chosen().load(std::memory_order_acquire); }

void select_kernels(const char* name) {
  const std::string wanted = name;
  const KernelTable* table = wanted == "auto"       ? best()
                             : wanted == "portable" ? &portable_kernels()
                             : wanted == "avx2"     ? avx2_kernels()
                             : wanted == "vnni"     ? vnni_kernels()
                                                    : nullptr;
  require(table != nullptr, "kernels '" + wanted + "' are unknown here or not supported by this processor; use auto, portable, avx2 or vnni");
  chosen().store(table, std::memory_order_release);
}

}  // namespace sapwood
