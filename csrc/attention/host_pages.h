// Owns: pages of KV below the pool, each one stretch of bytes that storage can keep as it is, and the moves between the two.
//
//   pool    layer -> page -> bytes of 16 tokens            a host page: [ layer 0 | layer 1 | ... ], each `span` pool pages side by side
//
// Invariant: bytes move, numbers do not change, so a page that comes back is the page that left, to the bit; moves run between the
// operations of steps, on the thread that runs them, and never beside one.
#pragma once
#include <memory>
#include <vector>

#include "attention/kv_pool.h"
#include "core/thread_pool.h"

namespace sapwood {

struct PageMove {
  int32_t from, to;
};

class HostPages : public std::enable_shared_from_this<HostPages> {
 public:
  HostPages() = default;  // none
  // Room for `pages` pages of `span` consecutive pool pages each; memory is taken when a page is first filled.
  HostPages(const KvShape& shape, int64_t pages, int span);

  int64_t pages() const { return pages_; }
  int64_t page_bytes() const { return layer_bytes_ * layers_; }
  std::byte* data() const { return bytes_.data(); }
  void check(const KvPool& pool, const std::vector<PageMove>& saves, const std::vector<PageMove>& loads) const;  // throws Error
  // Saves (pool -> host) in their order, then loads (host -> pool), the layers shared out over the lanes. Page numbers count spans.
  void carry(ThreadPool& lanes, const KvPool& pool, const std::vector<PageMove>& saves, const std::vector<PageMove>& loads) const;

 private:
  std::byte* at(int64_t page, int layer) const { return bytes_.data() + page * page_bytes() + layer * layer_bytes_; }

  Buffer bytes_;
  int64_t pages_ = 0, layers_ = 0, layer_bytes_ = 0;
  int span_ = 1;
};

}  // namespace sapwood
