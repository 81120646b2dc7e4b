// GraphCache: decode steps as graphs, one for each padded batch size ("bucket"), captured once at start. A
// replay costs the host one call where the step's kernels cost it hundreds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "src/base/status.h"
#include "src/base/tensor.h"
#include "src/device/backend.h"

namespace llm_dist::engine {

// The parts of a step that are captured. Between them a step does what changes from one to the next:
// hand-off, grammar masks, copies to the host.
enum class GraphPart : uint8_t { kForward, kSample };
inline constexpr size_t kNumGraphParts = 2;

// The batch sizes to capture where nobody says otherwise: 1, 2, 4, then every eighth up to `max_num_seqs`,
// which is one of them.
std::vector<int64_t> default_graph_sizes(int64_t max_num_seqs);

class GraphCache {
 public:
  // sizes: ascending; empty: every step is issued anew.
  GraphCache(device::Backend& backend, std::vector<int64_t> sizes);

  const std::vector<int64_t>& sizes() const { return sizes_; }
  // The smallest size that holds `num_sequences`, 0 where there is none.
  int64_t bucket_for(int64_t num_sequences) const;

  // Captures what issue() issues to `stream`, whose addresses must be those of every step of that size.
  // issue() must have run before: the first time allocates and connects.
  Status capture(GraphPart part,
                 int64_t bucket,
                 device::Stream& stream,
                 const std::function<Tensor()>& issue);
  // Issues what was captured; returns what issue() returned.
  Tensor replay(GraphPart part, int64_t bucket, device::Stream& stream) const;

 private:
  struct Entry {
    std::unique_ptr<device::Graph> graph;
    Tensor result;
  };
  size_t index_of(GraphPart part, int64_t bucket) const;

  device::Backend& backend_;
  std::vector<int64_t> sizes_;
  std::vector<Entry> entries_;  // kNumGraphParts a size
};

}  // namespace llm_dist::engine
