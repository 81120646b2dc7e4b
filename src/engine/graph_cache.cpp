#include "src/engine/graph_cache.h"

#include <algorithm>

namespace llm_dist::engine {

std::vector<int64_t> default_graph_sizes(int64_t max_num_seqs) {
  constexpr int64_t kStep = 8;
  std::vector<int64_t> sizes;
  for (int64_t size : {1, 2, 4}) {
    if (size < max_num_seqs) sizes.push_back(size);
  }
  for (int64_t size = kStep; size < max_num_seqs; size += kStep) sizes.push_back(size);
  sizes.push_back(max_num_seqs);
  return sizes;
}

GraphCache::GraphCache(device::Backend& backend, std::vector<int64_t> sizes)
    : backend_(backend), sizes_(std::move(sizes)), entries_(sizes_.size() * kNumGraphParts) {
  CHECK(std::is_sorted(sizes_.begin(), sizes_.end()), "graph sizes in disorder");
}

int64_t GraphCache::bucket_for(int64_t num_sequences) const {
  auto found = std::lower_bound(sizes_.begin(), sizes_.end(), num_sequences);
  return num_sequences == 0 || found == sizes_.end() ? 0 : *found;
}

size_t GraphCache::index_of(GraphPart part, int64_t bucket) const {
  auto found = std::lower_bound(sizes_.begin(), sizes_.end(), bucket);
  CHECK(found != sizes_.end() && *found == bucket, "no graphs for {} sequences", bucket);
  return static_cast<size_t>(found - sizes_.begin()) * kNumGraphParts + static_cast<size_t>(part);
}

Status GraphCache::capture(GraphPart part,
                           int64_t bucket,
                           device::Stream& stream,
                           const std::function<Tensor()>& issue) {
  Entry& entry = entries_[index_of(part, bucket)];
  backend_.begin_capture(stream);
  entry.result = issue();
  ASSIGN_OR_RETURN(entry.graph, backend_.end_capture(stream));
  return stream.error();
}

Tensor GraphCache::replay(GraphPart part, int64_t bucket, device::Stream& stream) const {
  const Entry& entry = entries_[index_of(part, bucket)];
  CHECK(entry.graph != nullptr, "a graph that was not captured, for {} sequences", bucket);
  entry.graph->launch(stream);
  return entry.result;
}

}  // namespace llm_dist::engine
