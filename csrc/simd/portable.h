// Owns: the operations of simd.h in plain C++, for processors without a path of their own and as the oracle of the others.
// Invariant: same bits as simd/avx2.h; every loop runs over the lanes of one 256-bit vector.
#pragma once

namespace sapwood::SAPWOOD_ISA {

struct F {
  alignas(32) float v[8];
};
struct I {
  alignas(32) int8_t bytes[32];
};
using B = I;

template <class Op>
SAPWOOD_INLINE F lanes(Op op) {
  F r;
  for (int i = 0; i < 8; i++) r.v[i] = op(i);
  return r;
}
template <class T>
struct View {  // the integers of a vector as 32 / sizeof(T) elements
  T v[32 / sizeof(T)];
  static View of(I a) {
    View r;
    std::memcpy(&r, &a, 32);
    return r;
  }
  I vector() const {
    I r;
    std::memcpy(&r, this, 32);
    return r;
  }
};
template <class T, class Op>
SAPWOOD_INLINE I elements(Op op) {
  View<T> r;
  for (int i = 0; i < int(32 / sizeof(T)); i++) r.v[i] = static_cast<T>(op(i));
  return r.vector();
}
template <class T, class Wide>
SAPWOOD_INLINE T clamp_to(Wide x, Wide low, Wide high) { return static_cast<T>(x < low ? low : x > high ? high : x); }

SAPWOOD_INLINE void keep(I&) {}
SAPWOOD_INLINE void prefetch(const void*) {}

SAPWOOD_INLINE F load(const float* p) { return lanes([&](int i) { return p[i]; }); }
SAPWOOD_INLINE F load_half(const uint16_t* p) { return lanes([&](int i) { return half_to_float(p[i]); }); }
SAPWOOD_INLINE F load_bfloat(const uint16_t* p) { return lanes([&](int i) { return bfloat_to_float(p[i]); }); }
SAPWOOD_INLINE F load_u8(const uint8_t* p) { return lanes([&](int i) { return float(p[i]); }); }
SAPWOOD_INLINE F load_s8(const int8_t* p) { return lanes([&](int i) { return float(p[i]); }); }
SAPWOOD_INLINE void store(float* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
SAPWOOD_INLINE void store_half(uint16_t* p, F a) {
  for (int i = 0; i < 8; i++) p[i] = float_to_half(a.v[i]);
}
SAPWOOD_INLINE F zero() { return lanes([](int) { return 0.f; }); }
SAPWOOD_INLINE F all(float x) { return lanes([&](int) { return x; }); }
SAPWOOD_INLINE F add(F a, F b) { return lanes([&](int i) { return a.v[i] + b.v[i]; }); }
SAPWOOD_INLINE F sub(F a, F b) { return lanes([&](int i) { return a.v[i] - b.v[i]; }); }
SAPWOOD_INLINE F mul(F a, F b) { return lanes([&](int i) { return a.v[i] * b.v[i]; }); }
SAPWOOD_INLINE F div(F a, F b) { return lanes([&](int i) { return a.v[i] / b.v[i]; }); }
SAPWOOD_INLINE F fma(F a, F b, F c) { return lanes([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); }); }
SAPWOOD_INLINE F fnma(F a, F b, F c) { return lanes([&](int i) { return std::fma(-a.v[i], b.v[i], c.v[i]); }); }
SAPWOOD_INLINE F max(F a, F b) { return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
SAPWOOD_INLINE F min(F a, F b) { return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
SAPWOOD_INLINE float max_magnitude(float a, float b) { return std::bit_cast<int32_t>(a) > std::bit_cast<int32_t>(b) ? a : b; }
SAPWOOD_INLINE F max_magnitude(F a, F b) { return lanes([&](int i) { return max_magnitude(a.v[i], b.v[i]); }); }
SAPWOOD_INLINE float largest_magnitude(F a) {
  float m = 0;
  for (float x : a.v) m = max_magnitude(m, x);
  return m;
}
SAPWOOD_INLINE F largest_of_each(const float* numbers) {
  return lanes([&](int i) { return largest_magnitude(load(numbers + 8 * i)); });
}
SAPWOOD_INLINE unsigned lanes_above(F a, F b) {
  unsigned mask = 0;
  for (int i = 0; i < 8; i++) mask |= unsigned(std::bit_cast<int32_t>(a.v[i]) > std::bit_cast<int32_t>(b.v[i])) << i;
  return mask;
}
SAPWOOD_INLINE I is_lane(int lane) { return elements<int32_t>([&](int i) { return i == lane ? -1 : 0; }); }
SAPWOOD_INLINE F without_lane(F a, int lane) { return lanes([&](int i) { return i == lane ? 0.f : a.v[i]; }); }
SAPWOOD_INLINE F negate(F a) { return lanes([&](int i) { return -a.v[i]; }); }
SAPWOOD_INLINE F abs(F a) { return lanes([&](int i) { return std::fabs(a.v[i]); }); }
SAPWOOD_INLINE F zero_below(F a, F value, F bound) {
  return lanes([&](int i) { return a.v[i] >= bound.v[i] ? value.v[i] : 0.f; });
}
SAPWOOD_INLINE F nearest(F a) { return lanes([&](int i) { return std::nearbyint(a.v[i]); }); }
SAPWOOD_INLINE F power_of_two(F n) {
  return lanes([&](int i) { return std::bit_cast<float>(uint32_t(int(n.v[i]) + 127) << 23); });
}
SAPWOOD_INLINE float max_of(F a) {
  float m = a.v[0];
  for (float x : a.v) m = m > x ? m : x;
  return m;
}
SAPWOOD_INLINE float sum_of(F a) {
  const float* v = a.v;
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

SAPWOOD_INLINE I zero_int() { return elements<int8_t>([](int) { return 0; }); }
SAPWOOD_INLINE I load_int(const void* p) {
  I r;
  std::memcpy(&r, p, 32);
  return r;
}
SAPWOOD_INLINE void store_int(void* p, I a) { std::memcpy(p, &a, 32); }
SAPWOOD_INLINE I load_widened_s8(const int8_t* p) { return elements<int16_t>([&](int i) { return p[i]; }); }
SAPWOOD_INLINE I broadcast4(const void* p) {
  I r;
  for (int i = 0; i < 8; i++) std::memcpy(r.bytes + 4 * i, p, 4);
  return r;
}
SAPWOOD_INLINE I all8(int x) { return elements<int8_t>([&](int) { return x; }); }
SAPWOOD_INLINE I all32(int x) { return elements<int32_t>([&](int) { return x; }); }
SAPWOOD_INLINE I bit_and(I a, I b) { return elements<int8_t>([&](int i) { return a.bytes[i] & b.bytes[i]; }); }
SAPWOOD_INLINE I bit_or(I a, I b) { return elements<int8_t>([&](int i) { return a.bytes[i] | b.bytes[i]; }); }
template <int n>
SAPWOOD_INLINE I shift16(I a) {
  const auto x = View<uint16_t>::of(a);
  return elements<uint16_t>([&](int i) { return n >= 0 ? x.v[i] << (n >= 0 ? n : 0) : x.v[i] >> (n < 0 ? -n : 0); });
}
SAPWOOD_INLINE I shift16_right(I a, int n) {
  const auto x = View<uint16_t>::of(a);
  return elements<uint16_t>([&](int i) { return x.v[i] >> n; });
}
SAPWOOD_INLINE I maddubs(I u, I s) {
  return elements<int16_t>([&](int i) {
    const int sum = uint8_t(u.bytes[2 * i]) * s.bytes[2 * i] + uint8_t(u.bytes[2 * i + 1]) * s.bytes[2 * i + 1];
    return clamp_to<int16_t>(sum, -32768, 32767);
  });
}
SAPWOOD_INLINE I madd16(I a, I b) {
  const auto x = View<int16_t>::of(a), y = View<int16_t>::of(b);
  return elements<int32_t>([&](int i) { return x.v[2 * i] * y.v[2 * i] + x.v[2 * i + 1] * y.v[2 * i + 1]; });
}
SAPWOOD_INLINE I add16(I a, I b) {
  const auto x = View<int16_t>::of(a), y = View<int16_t>::of(b);
  return elements<int16_t>([&](int i) { return x.v[i] + y.v[i]; });
}
SAPWOOD_INLINE I add32(I a, I b) {
  const auto x = View<uint32_t>::of(a), y = View<uint32_t>::of(b);
  return elements<uint32_t>([&](int i) { return x.v[i] + y.v[i]; });
}
SAPWOOD_INLINE I sub32(I a, I b) {
  const auto x = View<uint32_t>::of(a), y = View<uint32_t>::of(b);
  return elements<uint32_t>([&](int i) { return x.v[i] - y.v[i]; });
}
SAPWOOD_INLINE F to_float(I a) {
  const auto x = View<int32_t>::of(a);
  return lanes([&](int i) { return float(x.v[i]); });
}
SAPWOOD_INLINE I to_int(F a) {  // out of range and NaN give INT_MIN, as the hardware does
  return elements<int32_t>([&](int i) {
    const float r = std::nearbyint(a.v[i]);
    return r >= -2147483648.f && r < 2147483648.f ? int32_t(r) : INT32_MIN;
  });
}
SAPWOOD_INLINE int sum_of_int(I a) {
  const auto x = View<uint32_t>::of(a);
  uint32_t sum = 0;
  for (uint32_t v : x.v) sum += v;
  return int(sum);
}
SAPWOOD_INLINE I pack16(I a, I b) {
  const auto x = View<int32_t>::of(a), y = View<int32_t>::of(b);
  return elements<int16_t>([&](int i) { return clamp_to<int16_t>(i < 8 ? x.v[i] : y.v[i - 8], -32768, 32767); });
}
SAPWOOD_INLINE I pack8(const I (&c)[4]) {
  return elements<int8_t>([&](int i) { return clamp_to<int8_t>(View<int32_t>::of(c[i / 8]).v[i % 8], -128, 127); });
}

SAPWOOD_INLINE int pair_starts(I codes, DotStarts& starts) {
  int sums[2][2] = {};  // of a half of the group: numbers 4i, 4i + 1 and 4i + 2, 4i + 3
  for (int i = 0; i < 32; i++) sums[i / 16][i % 4 / 2] += codes.bytes[i];
  const auto start = [](int offset, int low, int high) {
    return int32_t(uint32_t(uint16_t(-offset * low)) | uint32_t(uint16_t(-offset * high)) << 16);
  };
  const int low = sums[0][0] + sums[1][0], high = sums[0][1] + sums[1][1];
  starts = {start(8, low, high), start(16, low, high), {start(32, sums[0][0], sums[0][1]), start(32, sums[1][0], sums[1][1])}};
  return low + high;
}

}  // namespace sapwood::SAPWOOD_ISA
