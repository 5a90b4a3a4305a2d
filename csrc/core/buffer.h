// Owns: aligned memory for weights, activations and KV pages.
// Invariant: data() is 64-byte aligned and reads as zeros; large buffers are mapped, aligned to 2 MiB, and ask the kernel for huge
//            pages; their memory is taken when it is first touched. Small ones are neither (equal low address bits would collide
//            in the L1 cache).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace sapwood {

struct FreeBytes {
  size_t mapped = 0;  // bytes of a mapping; 0: from the allocator
  void operator()(std::byte* bytes) const noexcept;
};

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size_bytes);

  std::byte* data() const { return bytes_.get(); }
  size_t size() const { return size_; }
  template <class T>
  T* as() const { return reinterpret_cast<T*>(bytes_.get()); }

 private:
  std::unique_ptr<std::byte, FreeBytes> bytes_;
  size_t size_ = 0;
};

// A typed view of a Buffer that a kernel can index; `count` elements, zeroed.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(size_t count) : buffer_(count * sizeof(T)), count_(count) {}
  T* data() const { return buffer_.as<T>(); }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data()[i]; }

 private:
  Buffer buffer_;
  size_t count_ = 0;
};

}  // namespace sapwood
