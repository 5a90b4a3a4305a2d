// Owns: static buffers for up to `max_rows` rows of activations of one width, in every form a linear may ask for.
// Invariant: rows are padded with zeros to whole groups of 32; a form that was not asked for at construction has no memory.
#pragma once
#include "core/buffer.h"
#include "kernels/kernels.h"

namespace sapwood {

class Activations {
 public:
  Activations(int64_t max_rows, int64_t k, unsigned want);

  ActivationView view(int64_t first_row = 0) const;
  QuantizedRow row(int64_t index) const;
  int64_t k() const { return k_; }
  int64_t padded_k() const { return padded_k_; }
  int64_t max_rows() const { return max_rows_; }
  unsigned want() const { return want_; }

 private:
  struct Memory8 {
    Array<Group8> groups;
    Array<uint64_t> led;
    Array<float> unit;
  };
  Memory8 memory8() const;
  Codes8 codes8(const Memory8& memory, int64_t row) const;

  int64_t max_rows_, k_, padded_k_, groups_, led_words_;
  unsigned want_;
  Memory8 first_, rest_;
  Array<int16_t> codes13_;
  Array<float> scale13_, values_;
};

}  // namespace sapwood
