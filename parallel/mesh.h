// Mesh: where a rank stands among tensor-parallel ranks and pipeline stages.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "src/base/check.h"

namespace llm_dist::parallel {

struct Layout {
  int tp = 1;
  int pp = 1;
  bool sequence_parallel = false;  // every step
  // Steps of at least so many tokens, where every tensor group has a kernel for norms of shares
  // (comm/norm_reducer.h).
  int64_t sequence_parallel_from = kNever;

  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  bool is_sequence_parallel(int64_t tokens) const {
    return tp > 1 && (sequence_parallel || tokens >= sequence_parallel_from);
  }
  int world_size() const { return tp * pp; }
  bool operator==(const Layout&) const = default;
};
std::string to_string(const Layout& layout);  // "TP 2 × PP 3, sequence parallel"

// World rank = stage · tp + rank_tp: tp varies fastest, so that a tensor group stays inside a node.
class Mesh {
 public:
  Mesh(Layout layout, int rank) : layout_(layout), rank_(rank) {
    CHECK(rank >= 0 && rank < layout.world_size(), "rank {} of a {}-rank layout", rank, layout.world_size());
  }

  const Layout& layout() const { return layout_; }
  int rank() const { return rank_; }
  int tp() const { return layout_.tp; }
  int pp() const { return layout_.pp; }
  int rank_tp() const { return rank_ % layout_.tp; }
  int stage() const { return rank_ / layout_.tp; }
  bool first_stage() const { return stage() == 0; }
  bool last_stage() const { return stage() == layout_.pp - 1; }
  // Whether a step may be.
  bool sequence_parallel() const {
    return tp() > 1 && (layout_.sequence_parallel || layout_.sequence_parallel_from != Layout::kNever);
  }

  int rank_of(int stage, int rank_tp) const { return stage * layout_.tp + rank_tp; }
  // World ranks of this rank's tensor group.
  std::vector<int> tensor_group() const {
    std::vector<int> ranks;
    ranks.reserve(static_cast<size_t>(layout_.tp));
    for (int i = 0; i < layout_.tp; ++i) ranks.push_back(rank_of(stage(), i));
    return ranks;
  }

 private:
  Layout layout_;
  int rank_;
};

}  // namespace llm_dist::parallel
