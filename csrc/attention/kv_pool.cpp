#include "attention/kv_pool.h"

#include <cstring>
#include <string>

#include "core/error.h"
#include "core/half.h"
#include "kernels/kernels.h"

namespace sapwood {

KvPool::KvPool(const KvShape& shape, int64_t pages, const std::vector<bool>& window_layers, int64_t window_pages)
    : shape_(shape), pages_{pages}, kinds_(window_layers.begin(), window_layers.end()) {
  require(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 && shape.head_dim <= 1024,
          "a KV pool needs at least one layer and head and a head_dim of 1 to 1024, not " + std::to_string(shape.head_dim));
  require(kinds_.empty() || int(kinds_.size()) == shape.layers, "a KV pool needs one window flag for each layer, or none");
  if (!kinds_.empty()) pages_.push_back(window_pages);
  kinds_.resize(size_t(shape.layers));
  for (int64_t count : pages_)
    require(count > 0 && count < (int64_t(1) << 27), "a KV pool needs 1 to 2^27 pages, not " + std::to_string(count));
  for (int kind : kinds_) layers_.emplace_back(size_t(pages_[size_t(kind)] * shape.page_bytes()));
}

int64_t KvPool::size_bytes() const {
  int64_t total = 0;
  for (int kind : kinds_) total += pages(kind) * shape_.page_bytes();
  return total;
}

void KvPool::check_location(int kind, int64_t location) const {
  require(location >= 0 && location < pages(kind) * kPageTokens,
          "KV location " + std::to_string(location) + " is outside a pool of " + std::to_string(pages(kind) * kPageTokens) + " tokens");
}

void KvPool::store(int layer, int64_t location, int kv_head, const float* key, const float* value) const {
  std::byte* at = page(layer, location / kPageTokens, kv_head);
  const int token = int(location % kPageTokens);
  const KernelTable& table = kernels();
  table.store_key(shape_.type, key, shape_.head_dim, at, token);
  table.store_value(shape_.type, value, shape_.head_dim, at + shape_.key_bytes() + token * shape_.padded_dim() * kv_bytes(shape_.type));
}

void KvPool::load(int layer, int64_t location, int kv_head, float* key, float* value) const {
  const std::byte* at = page(layer, location / kPageTokens, kv_head);
  const int64_t token = location % kPageTokens, values = shape_.key_bytes() / kv_bytes(shape_.type);
  for (int d = 0; d < shape_.head_dim; d++) {
    const int64_t k = int64_t(d) * kPageTokens + token, v = values + token * shape_.padded_dim() + d;
    if (shape_.type == KvType::kF32) {
      key[d] = reinterpret_cast<const float*>(at)[k], value[d] = reinterpret_cast<const float*>(at)[v];
    } else {
      key[d] = half_to_float(reinterpret_cast<const uint16_t*>(at)[k]), value[d] = half_to_float(reinterpret_cast<const uint16_t*>(at)[v]);
    }
  }
}

void KvPool::copy_tokens(int kind, const int32_t* from, const int32_t* to, int64_t count) const {
  const int64_t width = kv_bytes(shape_.type), row = shape_.padded_dim() * width;
  for (int64_t i = 0; i < count; i++) check_location(kind, from[i]), check_location(kind, to[i]);
  for (int layer = 0; layer < shape_.layers; layer++) {
    if (kinds_[size_t(layer)] != kind) continue;
    for (int head = 0; head < shape_.kv_heads; head++)
      for (int64_t i = 0; i < count; i++) {
        const std::byte* source = page(layer, from[i] / kPageTokens, head);
        std::byte* target = page(layer, to[i] / kPageTokens, head);
        const int64_t s = from[i] % kPageTokens, t = to[i] % kPageTokens;
        for (int64_t d = 0; d < shape_.head_dim; d++)
          std::memcpy(target + (d * kPageTokens + t) * width, source + (d * kPageTokens + s) * width, size_t(width));
        std::memmove(target + shape_.key_bytes() + t * row, source + shape_.key_bytes() + s * row, size_t(row));
      }
  }
}

}  // namespace sapwood
