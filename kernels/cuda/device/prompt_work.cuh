// Which rows a block of attention_prompt_hopper.cu works on, one piece after the other.
#pragma once

#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels {

// What a block works on: some rows of a sequence, of one kv head's group.
struct PromptWork {
  PromptItem item;
  int kv_head;  // −1: no work

  __device__ bool exists() const { return kv_head >= 0; }
  __device__ int num_rows(int group) const { return item.num_queries * group; }
  // Keys that its last row sees.
  __device__ int end(int group) const { return keys_of(item, group, kHopperPromptRows); }
};

// A block's way through the work. Items stand with the longest first: those of some heads next to each other,
// so that at the end little is left for a few, but of no more heads than L2 has room for. Of the heads before
// the last ones the shortest come first in turns, so that lengths never jump. They are dealt out to and fro:
// who gets the longest of one round gets the shortest of the next.
class PromptWalk {
 public:
  __device__ explicit PromptWalk(const PagedAttentionArgs& args) : args_(args) {}
  __device__ PromptWork next() {
    const int blocks = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x);
    const int at = round_ * blocks + (round_ % 2 == 0 ? block : blocks - 1 - block);
    ++round_;
    return piece(at);
  }

 private:
  __device__ PromptWork piece(int at) const {
    const int items = static_cast<int>(args_.plan.num_prompt);
    if (at >= items * args_.num_kv_heads) return {.item = {}, .kv_head = -1};
    const int together = args_.plan.prompt_heads;
    const int turn = at / (items * together);
    const int turns_left = (args_.num_kv_heads - 1) / together - turn;
    const int first_head = turn * together;
    const int heads = min(together, args_.num_kv_heads - first_head);
    const int rest = at - first_head * items;
    const int item = turns_left % 2 == 0 ? rest / heads : items - 1 - rest / heads;
    return {.item = args_.plan.prompt[item], .kv_head = first_head + rest % heads};
  }

  const PagedAttentionArgs& args_;
  int round_ = 0;
};

}  // namespace llm_dist::kernels
