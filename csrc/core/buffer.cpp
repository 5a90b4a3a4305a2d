#include "core/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace sapwood {
namespace {
constexpr size_t kLine = 64, kHugePage = size_t(2) << 20, kHugeFrom = size_t(1) << 20;
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

void FreeBytes::operator()(std::byte* bytes) const noexcept { std::free(bytes); }

Buffer::Buffer(size_t size_bytes) : size_(size_bytes) {
  if (size_bytes == 0) return;
  const size_t alignment = size_bytes >= kHugeFrom ? kHugePage : kLine;
  const size_t rounded = round_up(size_bytes, alignment);
  if (rounded < size_bytes) throw std::bad_alloc();
  void* bytes = std::aligned_alloc(alignment, rounded);
  if (bytes == nullptr) throw std::bad_alloc();
  bytes_.reset(static_cast<std::byte*>(bytes));
  if (alignment == kHugePage) madvise(bytes, rounded, MADV_HUGEPAGE);  // advice only: a refusal changes speed, not results
  std::memset(bytes, 0, rounded);
}

}  // namespace sapwood
