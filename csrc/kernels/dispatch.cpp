// Owns: which instruction set's kernels run. Decided once from the processor, or by name for tests and comparisons.
#include <atomic>
#include <string>

#if defined(SAPWOOD_BUILD_X86)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(SAPWOOD_BUILD_ARM64)
#include <sys/auxv.h>
#endif

#include "core/error.h"
#include "kernels/kernels.h"

namespace sapwood {
namespace isa_portable { const KernelTable& table(); }
namespace isa_avx2 { const KernelTable& table(); }
namespace isa_avxvnni { const KernelTable& table(); }
namespace isa_vnni { const KernelTable& table(); }
namespace isa_amx { const KernelTable& table(); }
namespace isa_neon { const KernelTable& table(); }

namespace {

#if defined(SAPWOOD_BUILD_AMX)
// Whether the processor has a tile unit for bytes and the system lets this process use it.
bool may_use_tiles() {
  constexpr unsigned kTiles = 1u << 24, kBytes = 1u << 25, kStateSaved = 3u << 17;  // CPUID 7.0 EDX; XCR0
  constexpr int kRequestPermission = 0x1023, kTileData = 18;                         // arch_prctl: ARCH_REQ_XCOMP_PERM
  unsigned eax = 0, ebx, ecx, edx = 0, state, state_high;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & (kTiles | kBytes)) != (kTiles | kBytes)) return false;
  asm volatile("xgetbv" : "=a"(state), "=d"(state_high) : "c"(0));
  return (state & kStateSaved) == kStateSaved && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

const std::vector<const KernelTable*>& supported_kernels() {
  static const std::vector<const KernelTable*> tables = [] {
    std::vector<const KernelTable*> found;
#if defined(SAPWOOD_BUILD_X86)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#if defined(SAPWOOD_BUILD_VNNI)
    const bool vnni = avx2 && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
#if defined(SAPWOOD_BUILD_AMX)
    if (vnni && may_use_tiles()) found.push_back(&isa_amx::table());
#endif
    if (vnni) found.push_back(&isa_vnni::table());
#endif
#if defined(SAPWOOD_BUILD_AVXVNNI)
    unsigned eax = 0, ebx, ecx, edx;  // not every compiler's __builtin_cpu_supports knows AVX-VNNI
    if (avx2 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1)) found.push_back(&isa_avxvnni::table());
#endif
    if (avx2) found.push_back(&isa_avx2::table());
#elif defined(SAPWOOD_BUILD_ARM64)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) found.push_back(&isa_neon::table());
#endif
    found.push_back(&isa_portable::table());
    return found;
  }();
  return tables;
}

namespace {

std::atomic<const KernelTable*>& chosen() {
  static std::atomic<const KernelTable*> table{supported_kernels().front()};
  return table;
}

}  // namespace

const KernelTable& kernels() { return *chosen().load(std::memory_order_acquire); }

void select_kernels(const char* name) {
  const std::string wanted = name;
  std::string known = "auto";
  const KernelTable* table = wanted == known ? supported_kernels().front() : nullptr;
  for (const KernelTable* t : supported_kernels()) {
    if (wanted == t->name) table = t;
    known += std::string(", ") + t->name;
  }
  require(table != nullptr, "kernels '" + wanted + "' are unknown here or not supported by this processor; choose from " + known);
  chosen().store(table, std::memory_order_release);
}

}  // namespace sapwood
