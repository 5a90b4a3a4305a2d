#include "core/offer.h"

#include <sched.h>

#include <chrono>

namespace sapwood {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kBetweenOffers(100), kPatience(2000), kAfterHog(50000);

}  // namespace

void offer_core() {
  thread_local Clock::time_point next;
  const auto before = Clock::now();
  if (before < next) return;
  sched_yield();
  const auto after = Clock::now();
  next = after + (after - before < kPatience ? kBetweenOffers : kAfterHog);
}

}  // namespace sapwood
