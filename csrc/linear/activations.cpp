#include "linear/activations.h"

#include "core/error.h"

namespace sapwood {

Activations::Activations(int64_t max_rows, int64_t k, unsigned want)
    : max_rows_(max_rows), k_(k), padded_k_((k + kGroup - 1) / kGroup * kGroup), groups_(padded_k_ / kGroup), led_words_((groups_ + kLedGroups - 1) / kLedGroups), want_(want) {
  require(max_rows > 0 && k > 0 && max_rows < (1 << 24) && k < (1 << 24),
          "activations need 1 to 2^24 rows and columns, not " + std::to_string(max_rows) + " x " + std::to_string(k));
  const size_t rows = size_t(max_rows), wide = rows * size_t(padded_k_), grouped = rows * size_t(groups_);
  if (want & kWant8) {
    codes8_ = Array<int8_t>(wide), lead8_ = Array<Lead8>(grouped), led8_ = Array<uint64_t>(rows * size_t(led_words_));
    scale8_ = Array<float>(grouped), sum8_ = Array<float>(grouped), half_sum8_ = Array<float>(2 * grouped);
  }
  if (want & kWant13) codes13_ = Array<int16_t>(wide), scale13_ = Array<float>(grouped);
  if (want & kWantValues) values_ = Array<float>(wide);
}

ActivationView Activations::view(int64_t first_row) const {
  ActivationView v;
  v.padded_k = padded_k_, v.groups = groups_, v.led_words = led_words_;
  const QuantizedRow r = row(first_row);
  v.codes8 = r.codes8, v.lead8 = r.lead8, v.led8 = r.led8, v.scale8 = r.scale8, v.sum8 = r.sum8, v.half_sum8 = r.half_sum8;
  v.codes13 = r.codes13, v.scale13 = r.scale13, v.values = r.values;
  return v;
}

QuantizedRow Activations::row(int64_t i) const {
  QuantizedRow r{};
  r.want = want_;
  if (want_ & kWant8) {
    r.codes8 = codes8_.data() + i * padded_k_, r.lead8 = lead8_.data() + i * groups_, r.led8 = led8_.data() + i * led_words_;
    r.scale8 = scale8_.data() + i * groups_, r.sum8 = sum8_.data() + i * groups_, r.half_sum8 = half_sum8_.data() + 2 * i * groups_;
  }
  if (want_ & kWant13) r.codes13 = codes13_.data() + i * padded_k_, r.scale13 = scale13_.data() + i * groups_;
  if (want_ & kWantValues) r.values = values_.data() + i * padded_k_;
  return r;
}

}  // namespace sapwood
