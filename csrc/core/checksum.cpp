#include "core/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace sapwood {
namespace {

constexpr int kWords = 8;  // independent sums: one multiplication waits for its own predecessor only
constexpr size_t kLine = kWords * sizeof(uint64_t), kPiece = size_t(1) << 20;
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;

// Two-way in either argument, so that neither can hide a change of the other.
uint64_t mix(uint64_t sum, uint64_t word) { return std::rotl(sum ^ word, 29) * kOdd; }

uint64_t piece_checksum(const std::byte* bytes, size_t size) {
  uint64_t sums[kWords] = {}, words[kWords];
  size_t at = 0;
  for (; at + kLine <= size; at += kLine) {
    std::memcpy(words, bytes + at, kLine);
    for (int i = 0; i < kWords; i++) sums[i] = mix(sums[i], words[i]);
  }
  std::fill_n(words, kWords, 0);
  if (at < size) std::memcpy(words, bytes + at, size - at);
  uint64_t sum = size;
  for (int i = 0; i < kWords; i++) sum = mix(sum, mix(sums[i], words[i]));
  return sum;
}

}  // namespace

uint64_t checksum(const std::byte* bytes, size_t size, ThreadPool& pool) {
  std::vector<uint64_t> pieces((size + kPiece - 1) / kPiece);
  pool.run([&](Lane& lane) {
    const Span share = lane.share(int64_t(pieces.size()));
    for (int64_t i = share.begin; i < share.end; i++) {
      const size_t at = size_t(i) * kPiece;
      pieces[size_t(i)] = piece_checksum(bytes + at, std::min(kPiece, size - at));
    }
  });
  uint64_t sum = size;
  for (uint64_t piece : pieces) sum = mix(sum, piece);
  return sum;
}

}  // namespace sapwood
