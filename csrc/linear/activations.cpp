#include "linear/activations.h"

#include "core/error.h"

namespace sapwood {

Activations::Activations(int64_t max_rows, int64_t k, unsigned want)
    : max_rows_(max_rows), k_(k), padded_k_((k + kGroup - 1) / kGroup * kGroup), groups_(padded_k_ / kGroup), led_words_((groups_ + kLedGroups - 1) / kLedGroups), want_(want) {
  require(max_rows > 0 && k > 0 && max_rows < (1 << 24) && k < (1 << 24),
          "activations need 1 to 2^24 rows and columns, not " + std::to_string(max_rows) + " x " + std::to_string(k));
  const size_t rows = size_t(max_rows), wide = rows * size_t(padded_k_), grouped = rows * size_t(groups_);
  require(!(want & kWantRest) || want & kWant8, "the rest of 8-bit codes is kept beside them");
  if (want & kWant8) first_ = memory8();
  if (want & kWantRest) rest_ = memory8();
  if (want & kWant13) codes13_ = Array<int16_t>(wide), scale13_ = Array<float>(grouped);
  if (want & kWantValues) values_ = Array<float>(wide);
}

Activations::Memory8 Activations::memory8() const {
  const size_t rows = size_t(max_rows_);
  return {Array<Group8>(rows * size_t(groups_)), Array<uint64_t>(rows * size_t(led_words_)), Array<float>(rows)};
}

Codes8 Activations::codes8(const Memory8& m, int64_t row) const {
  return {m.groups.data() + row * groups_, m.led.data() + row * led_words_, m.unit.data() + row};
}

ActivationView Activations::view(int64_t first_row) const {
  ActivationView v;
  v.padded_k = padded_k_, v.groups = groups_, v.led_words = led_words_;
  const QuantizedRow r = row(first_row);
  v.first = r.first, v.rest = r.rest;
  v.codes13 = r.codes13, v.scale13 = r.scale13, v.values = r.values;
  return v;
}

QuantizedRow Activations::row(int64_t i) const {
  QuantizedRow r{};
  r.want = want_;
  if (want_ & kWant8) r.first = codes8(first_, i);
  if (want_ & kWantRest) r.rest = codes8(rest_, i);
  if (want_ & kWant13) r.codes13 = codes13_.data() + i * padded_k_, r.scale13 = scale13_.data() + i * groups_;
  if (want_ & kWantValues) r.values = values_.data() + i * padded_k_;
  return r;
}

}  // namespace sapwood
