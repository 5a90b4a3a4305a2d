// Owns: who computes which part of a step's attention. Built once per step from the page tables, used by every layer.
//
// Stage A computes partials of whole chunks ahead of stage B, into a buffer:
//   shared   requests whose page tables agree on a chunk: one pass over its pages for the query rows of all of them
//   split    few long requests: their chunks are spread over the lanes
// Stage B takes strips of rows of one request, folds the partials of chunks 0, 1, 2 ... in ascending order, and computes the
// missing ones on the way.
//
//   request 0   [ chunk 0 | chunk 1 | chunk 2 | own tail ]          A: chunk 0 for rows of {0, 1, 2}, chunk 1 for {0, 1}
//   request 1   [ same    | same    | own     | own tail ]          B: each request: fold A's, compute the rest
//   request 2   [ same    | own tail ]
//
// Invariant: the plan decides only where a partial is computed, never its value.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/attend.h"

namespace sapwood {

struct Segment {             // one request's part of the step
  const int32_t* locations;  // its page-table row: raw location of every token, at least `length` of them
  int first_row, rows;       // its rows in the batch; the last row's position is length - 1
  int length;                // tokens of context after this step
};

struct RowRef {
  int segment, row;  // row within the segment
};

struct Strip {
  int first, count;  // in AttentionPlan::rows
  int chunk;         // stage A: the chunk; stage B: unused
};

class AttentionPlan {
 public:
  struct Options {
    int group;    // query heads per kv head
    int kv_heads;
    int window;   // 0: full attention
    int lanes;
  };
  // Keeps pointers into `segments`' page-table rows until the next build.
  void build(const std::vector<Segment>& segments, const Options& options);

  static int max_vectors(int group) { return group > kVectors ? group : kVectors; }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<RowRef>& rows() const { return rows_; }
  const std::vector<Strip>& ahead() const { return ahead_; }    // stage A
  const std::vector<Strip>& strips() const { return strips_; }  // stage B
  int chunks_ahead(int segment) const { return chunks_ahead_[size_t(segment)]; }
  // Index of the partial of (row, chunk) among partial_rows(), for one query head.
  int64_t partial(RowRef ref, int chunk) const {
    return first_partial_[size_t(ref.segment)] + int64_t(ref.row) * chunks_ahead_[size_t(ref.segment)] + chunk;
  }
  int64_t partials() const { return partials_; }

 private:
  static constexpr int kVectors = 48;  // query vectors per pass: scores and outputs stay in L2
  void share(std::vector<int> members, int chunk);
  void split(const Options& options);
  void add_ahead(const std::vector<int>& members, int chunk);
  void add_strips(std::vector<Strip>& to, int first_row_ref, int chunk) const;

  std::vector<Segment> segments_;
  std::vector<RowRef> rows_;
  std::vector<Strip> ahead_, strips_;
  std::vector<int> chunks_ahead_;
  std::vector<int64_t> first_partial_;
  int64_t partials_ = 0;
  int rows_per_strip_ = 1;
};

}  // namespace sapwood
