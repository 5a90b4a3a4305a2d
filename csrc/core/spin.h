// Owns: waiting without the kernel for a short while. Invariant: never longer than kSpinMicroseconds, so that a waiting thread
// soon leaves its core to others; the caller then parks.
#pragma once
#include <atomic>
#include <chrono>

namespace sapwood {

constexpr int kSpinMicroseconds = 50;

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// True as soon as ready() is; false when it was not within the time. The clock is read only now and then.
template <class Ready>
bool spin_until(Ready&& ready) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 64; i++, pause_cpu())
    if (ready()) return true;
  for (const auto end = Clock::now() + std::chrono::microseconds(kSpinMicroseconds); Clock::now() < end;)
    for (int i = 0; i < 32; i++, pause_cpu())
      if (ready()) return true;
  return ready();
}

}  // namespace sapwood
