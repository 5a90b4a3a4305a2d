// Owns: the memory of the KV pages of every layer, and how a raw token location maps into it.
//
//   location = page * 16 + token         layer -> page -> kv head:   [ K: head_dim x 16 | V: 16 x padded_dim | 8 bits: scales ]
//
// Invariant: memory starts as zeros and only finite rows of the request that owns a page should be stored; a page is read up
// to the tokens that its request has stored and no further, so what an earlier owner left behind never matters.
// Layers are of one kind, or of two whose pages are numbered apart: kind 1 are layers with a window, which need fewer pages.
#pragma once
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "kernels/attend.h"

namespace sapwood {

struct KvShape {
  int layers, kv_heads, head_dim;
  KvType type;
  int padded_dim() const { return (head_dim + 15) / 16 * 16; }
  int64_t key_bytes() const { return int64_t(head_dim) * kPageTokens * kv_bytes(type); }
  int64_t code_bytes() const { return key_bytes() + int64_t(padded_dim()) * kPageTokens * kv_bytes(type); }
  int64_t scale_bytes() const { return type == KvType::kI8 ? int64_t(scale_groups(head_dim)) * kPageTokens * 2 : 0; }  // of K, or of V
  int64_t head_bytes() const { return code_bytes() + 2 * scale_bytes(); }
  int64_t page_bytes() const { return head_bytes() * kv_heads; }
};

class KvPool : public std::enable_shared_from_this<KvPool> {
 public:
  // `window_layers` holds one flag per layer, or none where all layers are of kind 0.
  KvPool(const KvShape& shape, int64_t pages, const std::vector<bool>& window_layers = {}, int64_t window_pages = 0);
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvShape& shape() const { return shape_; }
  int kinds() const { return int(pages_.size()); }
  int kind(int layer) const { return kinds_[size_t(layer)]; }
  int64_t pages(int kind = 0) const { return pages_[size_t(kind)]; }
  int64_t size_bytes() const;
  std::byte* page(int layer, int64_t page, int kv_head) const {
    return layers_[size_t(layer)].data() + page * shape_.page_bytes() + kv_head * shape_.head_bytes();
  }
  void store(int layer, int64_t location, int kv_head, const float* key, const float* value) const;
  void load(int layer, int64_t location, int kv_head, float* key, float* value) const;  // as fp32, for tests and tools
  // Copies whole tokens in every layer of a kind, and every head; `count` pairs of raw locations.
  void copy_tokens(int kind, const int32_t* from, const int32_t* to, int64_t count) const;
  void check_location(int kind, int64_t location) const;  // throws Error outside the pool

 private:
  void copy_token(const std::byte* source, int64_t s, std::byte* target, int64_t t) const;
  KvShape shape_;
  std::vector<int64_t> pages_;  // by kind
  std::vector<int> kinds_;      // by layer
  std::vector<Buffer> layers_;
};

}  // namespace sapwood
