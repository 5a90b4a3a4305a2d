// Owns: how activations of 8 bits lie in memory.
// Invariant: what quantised a row and what multiplies it belong to one instruction set (DotStarts).
#pragma once
#include <cstdint>

namespace sapwood {

constexpr int kGroup = 32;
constexpr int kLedGroups = 64;          // groups per word of Codes8::led
constexpr int kLargestFactor = 32767;

// -offset times the sum of a group's codes, for the offsets 8 and 16, and 32 for each half: where the dot products of this
// instruction set begin (simd.h).
struct DotStarts {
  int32_t of8, of16, of32[2];
};

// A whole number up to kLargestFactor, in the two forms that products take.
struct Factor8 {
  int16_t twice[2];
  float number;
};

// 32 activations:  number = unit of the row * factor * (code, + 128 * high for number `lead`)
// Factors are whole so that they can be multiplied in integers, without rounding, by the instruction that adds a dot product up.
// The largest number of a group that stands out (its lead) has two digits; one more dot product, with the weight codes of its place,
// adds the high one. high is 0 where no number stands out.
struct alignas(64) Group8 {  // one cache line
  int8_t codes[kGroup];      // +-127
  DotStarts starts;
  Factor8 factor;
  float sum;                 // factor * sum of the codes, high digit included
  int8_t high, lead;         // lead: 0..31
};

struct Codes8 {
  Group8* groups = nullptr;  // [row][groups]
  uint64_t* led = nullptr;   // [row][led_words]: bit g % 64 of word g / 64 is set where group g has a lead
  float* unit = nullptr;     // [row]
};

}  // namespace sapwood
