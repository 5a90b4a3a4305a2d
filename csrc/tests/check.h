// Owns: the small frame of the stand-alone tests: registration, CHECK, and a reproducible source of numbers.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace test {

struct Case {
  const char* name;
  void (*run)();
};
std::vector<Case>& cases();
struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

#define TEST(name)                                          \
  static void test_##name();                                \
  static const test::Register register_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(condition)                                                                                            \
  do {                                                                                                              \
    if (!(condition)) throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " #condition); \
  } while (0)
#define CHECK_THROWS(expression)                 \
  do {                                           \
    bool thrown = false;                         \
    try {                                        \
      (void)(expression);                        \
    } catch (const std::runtime_error&) {        \
      thrown = true;                             \
    }                                            \
    CHECK(thrown && #expression);                \
  } while (0)

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return uint32_t(state_ >> 32);
  }
  int below(int n) { return int(bits() % uint32_t(n)); }
  float uniform() { return float(bits() >> 8) * 0x1p-23f - 1.f; }  // [-1, 1)
  float gauss() {
    float sum = 0;
    for (int i = 0; i < 6; i++) sum += uniform();
    return sum * 0.7071f;
  }

 private:
  uint64_t state_;
};

inline bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

}  // namespace test
