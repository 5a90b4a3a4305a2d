// Owns: scalar conversions between float and its two 16-bit forms (IEEE binary16 and bfloat16).
// Invariant: the same bits as the hardware's conversions (round to nearest even, subnormals kept, NaN stays NaN),
//            so that every instruction set stores the same KV values and reads the same scales.
#pragma once
#include <bit>
#include <cstdint>

namespace sapwood {

inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) {                                     // infinity, or NaN made quiet
    const uint32_t mantissa = (magnitude & 0x3ffu) << 13;
    return std::bit_cast<float>(sign | 0x7f800000u | mantissa | (mantissa ? 0x400000u : 0u));
  }
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float tiny = float(magnitude) * 0x1p-24f;                  // zero and subnormals: exact
  return std::bit_cast<float>(std::bit_cast<uint32_t>(tiny) | sign);
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);   // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                                   // below 2^-14: the addition rounds at 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

inline float bfloat_to_float(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }

}  // namespace sapwood
