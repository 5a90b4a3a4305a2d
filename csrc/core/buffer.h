// Owns: aligned memory for weights, activations and KV pages.
// Invariant: data() is 64-byte aligned and zeroed; large buffers are aligned to 2 MiB and ask the kernel for huge pages,
//            small ones are not (equal low address bits would collide in the L1 cache). Large ones take memory as they are
//            touched, so a KV pool costs what it holds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace sapwood {

struct FreeBytes {
  size_t mapped_size = 0;  // 0: from the heap
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
