// KvCache: one rank's paged cache, every block of every layer in one allocation.
#pragma once

#include <span>
#include <vector>

#include "parallel/step_view.h"
#include "src/base/kv_spec.h"
#include "src/device/backend.h"

namespace llm_dist::engine {

class KvCache {
 public:
  static Result<KvCache> create(device::Backend& backend, const KvSpec& spec, int64_t num_blocks);

  std::span<const parallel::KvLayer> layers() const { return layers_; }
  int64_t num_blocks() const { return num_blocks_; }
  const KvSpec& spec() const { return spec_; }

 private:
  KvSpec spec_;
  int64_t num_blocks_ = 0;
  device::Buffer buffer_;
  std::vector<parallel::KvLayer> layers_;
};

}  // namespace llm_dist::engine
