// What the kernels of paged attention on tensor cores share.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/launch.h"

namespace llm_dist::kernels {

struct PagedAttentionArgs {
  const int32_t* block_tables;
  int64_t table_stride;
  int num_kv_heads;
  int group;
  int block_size;
  int64_t block_stride;  // of the caches, in elements
  int64_t head_stride;
  float scale;  // times log2(e)
  AttentionPlan plan;
  // Decodes: the kernel in front is that of the step's prompts. It lets them begin when it has waited for
  // what both of them read, so they do not wait for it but in the end, one block for all.
  bool beside_prompts = false;
};

// The rows of a sequence: a row is one query head of one token, and the rows of a kv head's group stand side
// by side.
struct AttentionRows {
  int sequence;
  int query_start;
  int num_rows;  // queries · group
  int context;
  int num_queries;

  // Keys that a row sees.
  __device__ int visible(int row, int group) const { return context - num_queries + row / group + 1; }
};

// Keys that the last row of a prompt's item of so many rows sees.
__device__ inline int keys_of(const PromptItem& item, int group, int rows) {
  const int last_row = min(item.num_queries * group, item.first_row + rows) - 1;
  return item.context - item.num_queries + last_row / group + 1;
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// The plan's prompt items. T: bf16 or f16; Kv: T or f8_e4m3; kHeadDim: 64 or 128.
template <typename T, typename Kv, int kHeadDim>
void launch_attend_prompts(const PagedAttentionArgs& args,
                           RowView<const T> queries,
                           const Kv* k_cache,
                           const Kv* v_cache,
                           RowView<T> out,
                           cudaStream_t stream);

}  // namespace llm_dist::kernels
