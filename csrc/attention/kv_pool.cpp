#include "attention/kv_pool.h"

#include <cstring>
#include <string>

#include "core/error.h"
#include "core/half.h"
#include "kernels/kernels.h"

namespace sapwood {

KvPool::KvPool(const KvShape& shape, int64_t pages, const std::vector<bool>& window_layers, int64_t window_pages)
    : shape_(shape), pages_{pages}, kinds_(window_layers.begin(), window_layers.end()) {
  require(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 && shape.head_dim <= kMaxHeadDim,
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
  kernels().store_token({shape_.type, key, value, shape_.head_dim, shape_.padded_dim(), at, int(location % kPageTokens)});
}

namespace {

float number(KvType type, const std::byte* at, int64_t index) {
  if (type == KvType::kF32) return reinterpret_cast<const float*>(at)[index];
  if (type == KvType::kF16) return half_to_float(reinterpret_cast<const uint16_t*>(at)[index]);
  return float(reinterpret_cast<const int8_t*>(at)[index]);
}

// Column t of a row-major matrix of 16 columns becomes column s of another.
void copy_column(const std::byte* from, int64_t s, std::byte* to, int64_t t, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; r++)
    std::memcpy(to + (r * kPageTokens + t) * width, from + (r * kPageTokens + s) * width, size_t(width));
}

}  // namespace

void KvPool::load(int layer, int64_t location, int kv_head, float* key, float* value) const {
  const std::byte* at = page(layer, location / kPageTokens, kv_head);
  const auto* scales = reinterpret_cast<const uint16_t*>(at + shape_.code_bytes());
  const int64_t token = location % kPageTokens, groups = scale_groups(shape_.head_dim);
  for (int d = 0; d < shape_.head_dim; d++) {
    key[d] = number(shape_.type, at, int64_t(d) * kPageTokens + token);
    value[d] = number(shape_.type, at + shape_.key_bytes(), token * shape_.padded_dim() + d);
    if (shape_.type != KvType::kI8) continue;
    key[d] *= half_to_float(scales[d / kScaleDims * kPageTokens + token]);
    value[d] *= half_to_float(scales[groups * kPageTokens + token * groups + d / kScaleDims]);
  }
}

void KvPool::copy_token(const std::byte* source, int64_t s, std::byte* target, int64_t t) const {
  const int64_t row = shape_.padded_dim() * kv_bytes(shape_.type), scale_row = shape_.scale_bytes() / kPageTokens;
  copy_column(source, s, target, t, shape_.head_dim, kv_bytes(shape_.type));
  std::memmove(target + shape_.key_bytes() + t * row, source + shape_.key_bytes() + s * row, size_t(row));
  const int64_t scales = shape_.code_bytes(), value_scales = scales + shape_.scale_bytes();
  copy_column(source + scales, s, target + scales, t, scale_row / 2, 2);
  std::memmove(target + value_scales + t * scale_row, source + value_scales + s * scale_row, size_t(scale_row));
}

void KvPool::copy_tokens(int kind, const int32_t* from, const int32_t* to, int64_t count) const {
  for (int64_t i = 0; i < count; i++) check_location(kind, from[i]), check_location(kind, to[i]);
  for (int layer = 0; layer < shape_.layers; layer++) {
    if (kinds_[size_t(layer)] != kind) continue;
    for (int head = 0; head < shape_.kv_heads; head++)
      for (int64_t i = 0; i < count; i++)
        copy_token(page(layer, from[i] / kPageTokens, head), from[i] % kPageTokens, page(layer, to[i] / kPageTokens, head), to[i] % kPageTokens);
  }
}

}  // namespace sapwood
