// Owns: the one exception type that the native library throws, and the check that throws it.
// Invariant: every message says what was wrong and what was expected; bindings turn it into a Python ValueError.
#pragma once
#include <stdexcept>
#include <string>

namespace sapwood {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool ok, const std::string& message) {
  if (!ok) throw Error(message);
}

}  // namespace sapwood
