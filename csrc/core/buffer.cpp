#include "core/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace sapwood {
namespace {
constexpr size_t kLine = 64, kHugePage = size_t(2) << 20, kHugeFrom = size_t(1) << 20;
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Fresh pages of `size` bytes (whole huge pages) from a huge page's edge; what was mapped around them is given back.
std::byte* map_aligned(size_t size) {
  void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  std::byte* whole = static_cast<std::byte*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(whole) % kHugePage) % kHugePage;
  if (before > 0) munmap(whole, before);
  munmap(whole + before + size, kHugePage - before);
  madvise(whole + before, size, MADV_HUGEPAGE);  // advice only: a refusal changes speed, not results
  return whole + before;
}
}  // namespace

void FreeBytes::operator()(std::byte* bytes) const noexcept {
  if (mapped > 0) munmap(bytes, mapped);
  else std::free(bytes);
}

Buffer::Buffer(size_t size_bytes) : size_(size_bytes) {
  if (size_bytes == 0) return;
  const bool large = size_bytes >= kHugeFrom;
  const size_t rounded = round_up(size_bytes, large ? kHugePage : kLine);
  if (rounded < size_bytes || rounded + kHugePage < rounded) throw std::bad_alloc();
  if (large) {
    bytes_ = {map_aligned(rounded), FreeBytes{rounded}};
    return;
  }
  void* bytes = std::aligned_alloc(kLine, rounded);
  if (bytes == nullptr) throw std::bad_alloc();
  bytes_.reset(static_cast<std::byte*>(bytes));
  std::memset(bytes, 0, rounded);
}

}  // namespace sapwood
