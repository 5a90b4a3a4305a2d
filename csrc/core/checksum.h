// Owns: a fast checksum of large pieces of memory, for files that this program wrote itself.
// Invariant: it does not depend on the number of lanes, and any change of a single aligned 8-byte word changes it. It finds
//            accidents (short writes, bad disks), not forgeries.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"

namespace sapwood {

uint64_t checksum(const std::byte* bytes, size_t size, ThreadPool& pool);

}  // namespace sapwood
