#include "linear/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/half.h"

namespace sapwood {
namespace {

constexpr int kBlock = 32;

int nearest_code(float x, float scale, int low, int high) {
  const float code = scale == 0 ? 0.f : std::nearbyint(x / scale);
  return code >= float(high) ? high : code > float(low) ? int(code) : low;  // NaN gives `low`
}

void quantise_q8_0(const float* x, std::byte* block) {
  float largest = 0;
  for (int i = 0; i < kBlock; i++) largest = std::max(largest, std::fabs(x[i]));
  const uint16_t scale = float_to_half(largest / 127.f);
  std::memcpy(block, &scale, 2);
  for (int i = 0; i < kBlock; i++) block[2 + i] = std::byte(int8_t(nearest_code(x[i], half_to_float(scale), -127, 127)));
}

void quantise_q4_1(const float* x, std::byte* block) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const uint16_t halves[2] = {float_to_half((*high - *low) / 15.f), float_to_half(*low)};
  const float scale = half_to_float(halves[0]), min = half_to_float(halves[1]);
  std::memcpy(block, halves, 4);
  for (int i = 0; i < kBlock / 2; i++)
    block[4 + i] = std::byte(nearest_code(x[i] - min, scale, 0, 15) | nearest_code(x[i + kBlock / 2] - min, scale, 0, 15) << 4);
}

}  // namespace

void quantise_row(Format format, const float* values, int64_t k, std::byte* blocks) {
  const int bytes = info(format).block_bytes;
  for (int64_t at = 0; at < k; at += kBlock, blocks += bytes) {
    float x[kBlock] = {};
    std::copy_n(values + at, std::min<int64_t>(kBlock, k - at), x);
    if (format == Format::kQ8_0) quantise_q8_0(x, blocks);
    else quantise_q4_1(x, blocks);
  }
}

}  // namespace sapwood
