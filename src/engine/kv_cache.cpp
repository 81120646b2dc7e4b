#include "src/engine/kv_cache.h"

namespace llm_dist::engine {

Result<KvCache> KvCache::create(device::Backend& backend, const KvSpec& spec, int64_t num_blocks) {
  KvCache cache;
  cache.spec_ = spec;
  cache.num_blocks_ = num_blocks;
  ASSIGN_OR_RETURN(cache.buffer_,
                   backend.allocate(num_blocks * spec.block_bytes(), device::MemoryKind::kDevice));
  int64_t tensor_bytes = num_blocks * spec.block_bytes_per_layer() / 2;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    auto view = [&](int64_t index) {
      return cache.buffer_.view(
          spec.dtype, {num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim}, index * tensor_bytes);
    };
    cache.layers_.push_back({view(2 * layer), view(2 * layer + 1)});
  }
  return cache;
}

}  // namespace llm_dist::engine
