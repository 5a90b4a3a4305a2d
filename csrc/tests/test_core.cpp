// Half conversions against first principles, buffers, and the thread pool under contention.
#include <chrono>
#include <thread>

#include "core/buffer.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/half.h"
#include "core/thread_pool.h"
#include "tests/check.h"

using namespace sapwood;

TEST(half_round_trips_and_rounds_to_even) {
  for (uint32_t h = 0; h < 0x10000; h++) {
    const float f = half_to_float(uint16_t(h));
    if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) {
      CHECK(std::isnan(f) && std::isnan(half_to_float(float_to_half(f))));
      continue;
    }
    CHECK(float_to_half(f) == h);
    if ((h & 0x7fff) >= 0x7bff) continue;
    const float above = half_to_float(uint16_t(h + 1)), middle = f + (above - f) * 0.5f;
    CHECK(float_to_half(middle) == (h % 2 ? h + 1 : h));
    CHECK(float_to_half(std::nextafter(middle, above)) == h + 1 && float_to_half(std::nextafter(middle, f)) == h);
  }
  CHECK(float_to_half(65519.f) == 0x7bff && float_to_half(65520.f) == 0x7c00 && float_to_half(-1e30f) == 0xfc00);
}

TEST(buffers_are_aligned_and_zeroed) {
  for (size_t size : {size_t(1), size_t(100), size_t(3) << 20}) {
    Buffer b(size);
    CHECK(reinterpret_cast<uintptr_t>(b.data()) % 64 == 0 && b.size() == size);
    for (size_t i = 0; i < size; i += 7) CHECK(b.data()[i] == std::byte(0));
  }
  CHECK(Buffer(0).data() == nullptr);
}

TEST(large_buffers_are_independent_and_given_back) {
  for (int i = 0; i < 200; i++) {  // 200 x 64 MiB would not fit if they stayed
    Buffer a(size_t(64) << 20), b((size_t(1) << 20) + 1);
    a.data()[a.size() - 1] = b.data()[b.size() - 1] = std::byte(1);
    CHECK(reinterpret_cast<uintptr_t>(a.data()) % (2 << 20) == 0 && a.data()[0] == std::byte(0) && b.data()[0] == std::byte(0));
    const Buffer moved = std::move(a);
    CHECK(moved.data()[moved.size() - 1] == std::byte(1) && a.data() == nullptr);
  }
}

TEST(checksum_sees_every_byte_and_no_lanes) {
  ThreadPool one(1), three(3);
  for (size_t size : {size_t(0), size_t(1), size_t(63), size_t(64), size_t(200), (size_t(2) << 20) + 13}) {
    std::vector<std::byte> bytes(size, std::byte(7));
    const uint64_t sum = checksum(bytes.data(), size, one);
    CHECK(sum == checksum(bytes.data(), size, three));
    for (size_t at = 0; at < size; at += size > 1000 ? 99991 : 1) {
      bytes[at] = std::byte(6);
      CHECK(checksum(bytes.data(), size, three) != sum);
      bytes[at] = std::byte(7);
    }
    if (size > 0) CHECK(checksum(bytes.data(), size - 1, one) != sum);
  }
}

TEST(pool_runs_every_lane_once_and_joins) {
  for (int lanes : {1, 2, 3, 5}) {
    ThreadPool pool(lanes);
    std::vector<int> hits(size_t(lanes), 0);
    for (int i = 0; i < 200; i++) pool.run([&](Lane& lane) { hits[size_t(lane.index)]++; });
    for (int h : hits) CHECK(h == 200);
  }
}

TEST(pool_wakes_after_parking) {
  ThreadPool pool(2);
  int sum = 0;
  for (int i = 0; i < 5; i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> hits{0};
    pool.run([&](Lane&) { hits++; });
    sum += hits;
  }
  CHECK(sum == 10);
}

TEST(phases_order_writes) {
  for (int lanes : {2, 4}) {
    ThreadPool pool(lanes);
    for (int64_t total : {1, 3, 64, 1000}) {
      std::vector<int> cells(size_t(total), 0);
      std::atomic<int> wrong{0};
      pool.run([&](Lane& lane) {
        for (int phase = 1; phase <= 300; phase++) {
          lane.divide(total, 7, [&](Span part) {
            for (int64_t i = part.begin; i < part.end; i++) cells[size_t(i)] += 1;
          });
          lane.divide(total, 3, [&](Span part) {
            for (int64_t i = part.begin; i < part.end; i++) wrong += cells[size_t(total - 1 - i)] != phase;
          });
        }
      });
      CHECK(wrong == 0);
      for (int c : cells) CHECK(c == 300);
    }
  }
}

TEST(shares_and_phases_cover_everything_exactly_once) {
  for (int64_t total : {0, 1, 2, 7, 64, 1001}) for (int lanes : {1, 3}) {
    ThreadPool pool(lanes);
    std::vector<std::atomic<int>> shared(size_t(total) + 1), taken(size_t(total) + 1);
    std::atomic<int> too_long{0};
    pool.run([&](Lane& lane) {
      const Span mine = lane.share(total);
      for (int64_t i = mine.begin; i < mine.end; i++) shared[size_t(i)]++;
      lane.divide(total, 5, [&](Span part) {
        too_long += part.end - part.begin > 5;
        for (int64_t i = part.begin; i < part.end; i++) taken[size_t(i)]++;
      });
    });
    for (int64_t i = 0; i < total; i++) CHECK(shared[size_t(i)] == 1 && taken[size_t(i)] == 1);
    CHECK(too_long == 0 && shared[size_t(total)] == 0 && taken[size_t(total)] == 0);
  }
}

// A lane that is kept away does not hold up the others, and does nothing twice when it is back.
TEST(phases_pass_without_a_lane_that_is_away) {
  for (int away : {0, 1, 2}) {
    ThreadPool pool(3);
    std::atomic<int> done{0};
    std::atomic<bool> back{false};
    pool.run([&](Lane& lane) {
      if (lane.index == away)
        while (done < 3 * 40) std::this_thread::yield();
      for (int phase = 0; phase < 40; phase++) lane.divide(3, 1, [&](Span) { done++; });
      if (lane.index == away) back = true;
      lane.divide(8, 1, [&](Span) { done++; });  // and all together again
    });
    CHECK(back && done == 3 * 40 + 8);
  }
}

TEST(numbers_of_phases_begin_anew) {
  SharedWork work(2);
  Span part{0, 0};
  const uint32_t late = (1u << 30) + 5;
  CHECK(work.begin_region() == 0);
  CHECK(work.take(late, 0, {0, 4}, 3, part) && part.begin == 0 && part.end == 3);
  CHECK(!work.take(late - 1, 0, {0, 4}, 3, part));  // over for whoever comes late
  CHECK(work.take(late, 0, {0, 4}, 3, part) && part.begin == 3 && part.end == 4);
  CHECK(!work.take(late, 0, {0, 4}, 3, part));
  work.finish(late, 3, 4);
  CHECK(!work.over(late));
  work.finish(late, 1, 4);
  CHECK(work.over(late) && work.begin_region() == 0 && !work.over(1));
  CHECK(work.take(1, 0, {2, 4}, 3, part) && part.begin == 2);  // the old words are gone
  work.finish(1, 2, 2);
  CHECK(work.over(1) && work.begin_region() == 1);
}

TEST(an_exception_in_a_lane_reaches_the_caller_and_the_pool_lives_on) {
  ThreadPool pool(2);
  CHECK_THROWS(pool.run([](Lane& lane) { if (lane.index == 1) throw Error("from lane 1"); }));
  std::atomic<int> hits{0};
  pool.run([&](Lane&) { hits++; });
  CHECK(hits == 2);
  CHECK_THROWS(ThreadPool(0));
}

TEST(callers_on_several_threads_take_turns) {
  ThreadPool pool(2);
  std::atomic<int> hits{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; c++)
    callers.emplace_back([&] {
      for (int i = 0; i < 100; i++) pool.run([&](Lane&) { hits++; });
    });
  for (auto& c : callers) c.join();
  CHECK(hits == 600);
}
