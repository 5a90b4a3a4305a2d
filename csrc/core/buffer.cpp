#include "core/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace sapwood {
namespace {

constexpr size_t kLine = 64, kHugePage = size_t(2) << 20, kHugeFrom = size_t(1) << 20;

size_t round_up(size_t n, size_t to) {
  if (n > SIZE_MAX - to) throw std::bad_alloc();
  return (n + to - 1) / to * to;
}

// Zeroed pages straight from the kernel: none of them takes memory before it is touched, so a large pool costs what it holds.
//
//   [ slack | aligned ............ rounded bytes | slack ]     the slack is given back at once
std::byte* map_zeroed(size_t rounded) {
  const size_t mapped = round_up(rounded + kHugePage, kHugePage);
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  auto* first = static_cast<std::byte*>(start);
  auto* aligned = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(start), kHugePage));
  if (aligned != first) munmap(first, size_t(aligned - first));
  if (aligned + rounded != first + mapped) munmap(aligned + rounded, size_t(first + mapped - (aligned + rounded)));
  madvise(aligned, rounded, MADV_HUGEPAGE);  // advice only: a refusal changes speed, not results
  return aligned;
}

std::byte* allocate_zeroed(size_t rounded) {
  void* bytes = std::aligned_alloc(kLine, rounded);
  if (bytes == nullptr) throw std::bad_alloc();
  std::memset(bytes, 0, rounded);
  return static_cast<std::byte*>(bytes);
}

}  // namespace

void FreeBytes::operator()(std::byte* bytes) const noexcept {
  if (mapped_size != 0) munmap(bytes, mapped_size);
  else std::free(bytes);
}

Buffer::Buffer(size_t size_bytes) : size_(size_bytes) {
  if (size_bytes == 0) return;
  const bool is_mapped = size_bytes >= kHugeFrom;
  const size_t rounded = round_up(size_bytes, is_mapped ? kHugePage : kLine);
  std::byte* bytes = is_mapped ? map_zeroed(rounded) : allocate_zeroed(rounded);
  bytes_ = {bytes, FreeBytes{is_mapped ? rounded : 0}};
}

}  // namespace sapwood
