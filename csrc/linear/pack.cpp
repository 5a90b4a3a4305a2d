// See pack.h. The structs below are GGUF's blocks; each Scheme copies one of them into one column of a packed block and reads
// it back. Element e of a group sits at K step e / 4, byte e % 4; column i of the panel at half i / 8, lane i % 8:
//
//   slot(i, e) = (e / 4) * 64 + (i / 8) * 32 + (i % 8) * 4 + e % 4          (e < 16; elements 16..31 are the high nibbles)
#include "linear/pack.h"

#include <cstring>

#include "core/error.h"
#include "core/half.h"

namespace sapwood {
namespace {

struct RawQ4_0 { uint16_t scale; uint8_t nibbles[16]; };
struct RawQ4_1 { uint16_t scale, min; uint8_t nibbles[16]; };
struct RawQ5_0 { uint16_t scale; uint8_t high[4], nibbles[16]; };
struct RawQ5_1 { uint16_t scale, min; uint8_t high[4], nibbles[16]; };
struct RawQ4_K { uint16_t scale, min; uint8_t scales[12], nibbles[128]; };
struct RawQ5_K { uint16_t scale, min; uint8_t scales[12], high[32], nibbles[128]; };
struct RawQ6_K { uint8_t low[128], high[64]; int8_t scales[16]; uint16_t scale; };
struct RawQ8_0 { uint16_t scale; int8_t codes[32]; };
static_assert(sizeof(RawQ4_0) == 18 && sizeof(RawQ4_1) == 20 && sizeof(RawQ5_0) == 22 && sizeof(RawQ5_1) == 24);
static_assert(sizeof(RawQ4_K) == 144 && sizeof(RawQ5_K) == 176 && sizeof(RawQ6_K) == 210 && sizeof(RawQ8_0) == 34);

int slot(int column, int e) { return (e / 4) * 64 + (column / 8) * 32 + (column % 8) * 4 + e % 4; }
// Byte lane of a column inside a bit plane's 32-byte vector.
int plane(int column, int e) { return (column / 8) * 32 + (column % 8) * 4 + e % 4; }

template <int kHighBits>
void put_code(Codes<kHighBits>& to, int column, int e, int code) {
  uint8_t& low = to.low[slot(column, e % 16)];
  low = uint8_t(low | (code & 15) << (e < 16 ? 0 : 4));
  if constexpr (kHighBits > 0) {
    const int step = e / 4, per_byte = 8 / kHighBits;
    uint8_t& high = to.high[(step / per_byte) * 64 + plane(column, e)];
    high = uint8_t(high | (code >> 4) << (step % per_byte * kHighBits));
  }
}

template <int kHighBits>
int get_code(const Codes<kHighBits>& from, int column, int e) {
  int code = from.low[slot(column, e % 16)] >> (e < 16 ? 0 : 4) & 15;
  if constexpr (kHighBits > 0) {
    const int step = e / 4, per_byte = 8 / kHighBits;
    code |= (from.high[(step / per_byte) * 64 + plane(column, e)] >> (step % per_byte * kHighBits) & ((1 << kHighBits) - 1)) << 4;
  }
  return code;
}

// Blocks whose nibble bytes already pair element e with element e + 16: whole bytes move.
void put_nibbles(uint8_t* low, int column, const uint8_t* nibbles) {
  for (int e = 0; e < 16; e += 4) std::memcpy(low + slot(column, e), nibbles + e, 4);
}
void put_plane(Codes<1>& to, int column, uint32_t bits) {  // bit e of `bits` is element e's fifth bit
  for (int lane = 0; lane < 4; lane++) {
    uint32_t byte = 0;
    for (int step = 0; step < 8; step++) byte |= (bits >> (4 * step + lane) & 1u) << step;
    to.high[plane(column, lane)] = uint8_t(byte);
  }
}
template <class Raw>
uint32_t high_bits(const Raw& raw) {
  uint32_t bits;
  std::memcpy(&bits, raw.high, 4);
  return bits;
}

template <class RawBlock, int kHighBits>
struct Offset {
  using Raw = RawBlock;
  using Packed = OffsetBlock<kHighBits>;
  static constexpr int kWeights = 32;
  static void put(const Raw& raw, Packed& to, int column) {
    to.scale[column] = raw.scale;
    put_nibbles(to.codes.low, column, raw.nibbles);
    if constexpr (kHighBits == 1) put_plane(to.codes, column, high_bits(raw));
  }
  static void get(const Packed& from, int column, float* out) {
    const float scale = half_to_float(from.scale[column]);
    for (int e = 0; e < 32; e++) out[e] = scale * float(get_code(from.codes, column, e) - (8 << kHighBits));
  }
};

template <class RawBlock, int kHighBits>
struct Min {
  using Raw = RawBlock;
  using Packed = MinBlock<kHighBits>;
  static constexpr int kWeights = 32;
  static void put(const Raw& raw, Packed& to, int column) {
    to.scale[column] = raw.scale;
    to.min[column] = raw.min;
    put_nibbles(to.codes.low, column, raw.nibbles);
    if constexpr (kHighBits == 1) put_plane(to.codes, column, high_bits(raw));
  }
  static void get(const Packed& from, int column, float* out) {
    const float scale = half_to_float(from.scale[column]), min = half_to_float(from.min[column]);
    for (int e = 0; e < 32; e++) out[e] = scale * float(get_code(from.codes, column, e)) + min;
  }
};

// The 6-bit scale and minimum of group g from the 12 bytes that hold eight of each.
void six_bit_pair(const uint8_t* s, int g, uint8_t& scale, uint8_t& min) {
  if (g < 4) {
    scale = s[g] & 63, min = s[g + 4] & 63;
  } else {
    scale = uint8_t((s[g + 4] & 15) | (s[g - 4] >> 6) << 4);
    min = uint8_t(s[g + 4] >> 4 | (s[g] >> 6) << 4);
  }
}

template <class RawBlock, int kHighBits>
struct Super {
  using Raw = RawBlock;
  using Packed = SuperBlock<kHighBits>;
  static constexpr int kWeights = 256;
  static int code(const Raw& raw, int g, int e) {
    int value = raw.nibbles[g / 2 * 32 + e] >> (g % 2 * 4) & 15;
    if constexpr (kHighBits == 1) value |= (raw.high[e] >> g & 1) << 4;
    return value;
  }
  static void put(const Raw& raw, Packed& to, int column) {
    to.scale[column] = raw.scale;
    to.min[column] = raw.min;
    for (int g = 0; g < kSuperGroups; g++) {
      six_bit_pair(raw.scales, g, to.scales[g][column], to.mins[g][column]);
      for (int e = 0; e < 32; e++) put_code(to.codes[g], column, e, code(raw, g, e));
    }
  }
  static void get(const Packed& from, int column, float* out) {
    const float scale = half_to_float(from.scale[column]), min = half_to_float(from.min[column]);
    for (int g = 0; g < kSuperGroups; g++) {
      const float s = scale * float(from.scales[g][column]), m = min * float(from.mins[g][column]);
      for (int e = 0; e < 32; e++) out[g * 32 + e] = s * float(get_code(from.codes[g], column, e)) - m;
    }
  }
};

struct Six {
  using Raw = RawQ6_K;
  using Packed = SixBlock;
  static constexpr int kWeights = 256;
  // 128 weights share 64 low bytes and 32 high bytes: quarter q of them uses nibble q / 2 and bit pair q.
  static int code(const Raw& raw, int index) {
    const int part = index / 128, quarter = index % 128 / 32, i = index % 32;
    const int low = raw.low[part * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
    return low | (raw.high[part * 32 + i] >> (2 * quarter) & 3) << 4;
  }
  static void put(const Raw& raw, Packed& to, int column) {
    to.scale[column] = raw.scale;
    for (int g = 0; g < kSuperGroups; g++) {
      for (int half = 0; half < 2; half++) to.scales[g][half][column] = raw.scales[2 * g + half];
      for (int e = 0; e < 32; e++) put_code(to.codes[g], column, e, code(raw, 32 * g + e));
    }
  }
  static void get(const Packed& from, int column, float* out) {
    const float scale = half_to_float(from.scale[column]);
    for (int g = 0; g < kSuperGroups; g++)
      for (int e = 0; e < 32; e++) {
        const float s = scale * float(from.scales[g][e / 16][column]);
        out[g * 32 + e] = s * float(get_code(from.codes[g], column, e) - 32);
      }
  }
};

struct Wide {
  using Raw = RawQ8_0;
  using Packed = WideBlock;
  static constexpr int kWeights = 32;
  static int at(int column, int e) { return (e / 2) * 32 + (column / 8) * 16 + column % 8 * 2 + e % 2; }
  static void put(const Raw& raw, Packed& to, int column) {
    to.scale[column] = raw.scale;
    for (int e = 0; e < 32; e++) to.codes[at(column, e)] = raw.codes[e];
  }
  static void get(const Packed& from, int column, float* out) {
    const float scale = half_to_float(from.scale[column]);
    for (int e = 0; e < 32; e++) out[e] = scale * float(from.codes[at(column, e)]);
  }
};

struct Half {
  using Raw = uint16_t;
  static float number(Raw x) { return half_to_float(x); }
};
struct Bfloat {
  using Raw = uint16_t;
  static float number(Raw x) { return bfloat_to_float(x); }
};
struct Single {
  using Raw = float;
  static float number(Raw x) { return x; }
};
template <class Number>
struct Loose {  // unquantised: one weight per block
  using Raw = typename Number::Raw;
  struct Packed { Raw column[kPanelColumns]; };
  static constexpr int kWeights = 1;
  static void put(const Raw& raw, Packed& to, int column) { to.column[column] = raw; }
  static void get(const Packed& from, int column, float* out) { *out = Number::number(from.column[column]); }
};

template <class F>
void with_scheme(Format format, F&& f) {
  switch (format) {
    case Format::kQ4_0: return f(Offset<RawQ4_0, 0>());
    case Format::kQ4_1: return f(Min<RawQ4_1, 0>());
    case Format::kQ4_K: return f(Super<RawQ4_K, 0>());
    case Format::kQ5_0: return f(Offset<RawQ5_0, 1>());
    case Format::kQ5_1: return f(Min<RawQ5_1, 1>());
    case Format::kQ5_K: return f(Super<RawQ5_K, 1>());
    case Format::kQ6_K: return f(Six());
    case Format::kQ8_0: return f(Wide());
    case Format::kF16: return f(Loose<Half>());
    case Format::kBF16: return f(Loose<Bfloat>());
    case Format::kF32: return f(Loose<Single>());
  }
}

}  // namespace

void pack_panels(Format format, const PackJob& job, int64_t begin, int64_t end) {
  with_scheme(format, [&](auto scheme) {
    using S = decltype(scheme);
    const int64_t blocks = job.k / S::kWeights, row_bytes = blocks * int64_t(sizeof(typename S::Raw));
    for (int64_t panel = begin; panel < end; panel++) {
      auto* to = reinterpret_cast<typename S::Packed*>(job.packed) + panel * blocks;
      for (int column = 0; column < kPanelColumns && panel * kPanelColumns + column < job.rows; column++) {
        const std::byte* from = job.raw + (panel * kPanelColumns + column) * row_bytes;
        for (int64_t b = 0; b < blocks; b++) {
          typename S::Raw raw;  // the file promises no alignment
          std::memcpy(&raw, from + b * int64_t(sizeof raw), sizeof raw);
          S::put(raw, to[b], column);
        }
      }
    }
  });
}

void unpack_column(Format format, const std::byte* packed, int64_t k, int64_t column, float* out) {
  with_scheme(format, [&](auto scheme) {
    using S = decltype(scheme);
    const int64_t blocks = k / S::kWeights;
    const auto* from = reinterpret_cast<const typename S::Packed*>(packed) + column / kPanelColumns * blocks;
    for (int64_t b = 0; b < blocks; b++) S::get(from[b], int(column % kPanelColumns), out + b * S::kWeights);
  });
}

}  // namespace sapwood
