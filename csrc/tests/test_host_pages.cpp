// Host pages: what a page held comes back to the bit, in plan order, on any number of lanes; steps that name wrong pages are refused.
#include <memory>

#include "attention/host_pages.h"
#include "core/error.h"
#include "tests/check.h"

using namespace sapwood;

namespace {

constexpr int kHeads = 2, kLayers = 5;

std::vector<float> head(const KvPool& pool, int64_t seed) {
  test::Random random{uint64_t(seed)};
  std::vector<float> x(size_t(pool.shape().head_dim));
  for (auto& v : x) v = random.gauss();
  return x;
}

void fill(const KvPool& pool, int64_t page, int64_t seed) {
  for (int layer = 0; layer < kLayers; layer++)
    for (int h = 0; h < kHeads; h++)
      for (int t = 0; t < kPageTokens; t++) {
        const int64_t s = ((seed * kLayers + layer) * kHeads + h) * kPageTokens + t;
        pool.store(layer, page * kPageTokens + t, h, head(pool, s).data(), head(pool, -s - 1).data());
      }
}

std::vector<std::byte> bytes(const KvPool& pool, int64_t page) {
  std::vector<std::byte> out;
  for (int layer = 0; layer < kLayers; layer++) {
    const std::byte* at = pool.page(layer, page, 0);
    out.insert(out.end(), at, at + pool.shape().page_bytes());
  }
  return out;
}

}  // namespace

TEST(pages_come_back_from_the_host_to_the_bit) {
  for (KvType type : {KvType::kF16, KvType::kF32, KvType::kI8})
    for (int span : {1, 3})
      for (int lanes : {1, 2, 7}) {
        const KvPool pool({kLayers, kHeads, 20, type}, 12);
        ThreadPool threads(lanes, false);
        const HostPages host(pool.shape(), 3, span);
        CHECK(host.page_bytes() == span * pool.shape().page_bytes() * kLayers);
        for (int p = 0; p < 12; p++) fill(pool, p, p);
        std::vector<std::vector<std::byte>> truth;
        for (int p = 0; p < 12; p++) truth.push_back(bytes(pool, p));
        // In one plan: page 1 goes to host 2 and comes back into page 0, after page 0 has been saved to host 0.
        host.carry(threads, pool, {{1, 2}, {0, 0}}, {{2, 0}});
        for (int i = 0; i < span; i++) CHECK(bytes(pool, i) == truth[size_t(span + i)]);
        for (int p = span; p < 12; p++) CHECK(bytes(pool, p) == truth[size_t(p)]);
        host.carry(threads, pool, {}, {{0, 3}});
        for (int i = 0; i < span; i++) CHECK(bytes(pool, 3 * span + i) == truth[size_t(i)]);
      }
}

TEST(a_host_page_saved_twice_holds_the_later_one) {
  const KvPool pool({kLayers, kHeads, 16, KvType::kF16}, 4);
  ThreadPool threads(2, false);
  const HostPages host(pool.shape(), 1, 1);
  for (int p = 0; p < 4; p++) fill(pool, p, p);
  host.carry(threads, pool, {{0, 0}, {1, 0}}, {{0, 3}});
  CHECK(bytes(pool, 3) == bytes(pool, 1));
}

TEST(moves_outside_the_pools_are_refused) {
  const KvPool pool({kLayers, kHeads, 16, KvType::kF16}, 7);
  const HostPages host(pool.shape(), 4, 2), none;
  host.check(pool, {{2, 3}}, {{0, 2}});
  for (const PageMove bad : {PageMove{3, 0}, PageMove{-1, 0}, PageMove{0, 4}, PageMove{0, -1}}) {
    CHECK_THROWS((host.check(pool, {bad}, {}), 0));
    CHECK_THROWS((host.check(pool, {}, {{bad.to, bad.from}}), 0));
  }
  none.check(pool, {}, {});
  CHECK_THROWS((none.check(pool, {{0, 0}}, {}), 0));
  CHECK_THROWS(HostPages(pool.shape(), -1, 1));
  CHECK_THROWS(HostPages(pool.shape(), 1, 0));
}
