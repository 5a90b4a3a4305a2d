#include "attention/host_pages.h"

#include <cstring>
#include <limits>
#include <string>

#include "core/error.h"

namespace sapwood {

HostPages::HostPages(const KvShape& shape, int64_t pages, int span)
    : pages_(pages), layers_(shape.layers), layer_bytes_(shape.page_bytes() * span), span_(span) {
  require(span > 0 && pages >= 0 && pages < (int64_t(1) << 27), "host pages need a span of at least 1 and number at most 2^27");
  require(pages <= std::numeric_limits<int64_t>::max() / page_bytes(), "so many host pages have more bytes than can be counted");
  bytes_ = Buffer(size_t(pages * page_bytes()));
}

void HostPages::check(const KvPool& pool, const std::vector<PageMove>& saves, const std::vector<PageMove>& loads) const {
  const auto check_move = [&](int32_t pool_page, int32_t host_page) {
    require(host_page >= 0 && host_page < pages_, "host page " + std::to_string(host_page) + " does not exist");
    require(pool_page >= 0 && pool_page < pool.pages() / span_, "page " + std::to_string(pool_page) + " is outside the KV pool");
  };
  require(pool.kinds() == 1 || (saves.empty() && loads.empty()), "layers with pages of their own have no host pages");
  for (const auto& m : saves) check_move(m.from, m.to);
  for (const auto& m : loads) check_move(m.to, m.from);
}

void HostPages::carry(ThreadPool& lanes, const KvPool& pool, const std::vector<PageMove>& saves, const std::vector<PageMove>& loads) const {
  if (saves.empty() && loads.empty()) return;
  lanes.run([&](Lane& lane) {
    const Span layers = lane.share(layers_);  // no two lanes touch one byte
    for (int layer = int(layers.begin); layer < int(layers.end); layer++) {
      for (const auto [from, to] : saves) std::memcpy(at(to, layer), pool.page(layer, int64_t(from) * span_, 0), size_t(layer_bytes_));
      for (const auto [from, to] : loads) std::memcpy(pool.page(layer, int64_t(to) * span_, 0), at(from, layer), size_t(layer_bytes_));
    }
  });
}

}  // namespace sapwood
