// What the device works out once a step for attention on tensor cores: which block works on what. Blocks find
// their work in lists, so that grids of a step of decodes depend on its padded size alone and a graph can
// replay.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/op_state.h"

namespace llm_dist::kernels {

class HopperPrompts;

// A share of a decoding sequence's context. `sequence` is −1 where a list has come to its end.
struct DecodeItem {
  int32_t sequence;
  int32_t begin;  // keys [begin, end)
  int32_t end;
  int32_t split;
  int32_t num_splits;
  int32_t first_slot;   // of its sequence's partial results; meaningless when num_splits is 1
  int32_t query_start;  // the sequence's, so that a block reads them all at once
  int32_t num_queries;
  int32_t context;
};

// Some queries of a prompt: rows are (token, head of the kv head's group), token-major.
struct PromptItem {
  int32_t sequence;
  int32_t first_row;
  int32_t query_start;  // the sequence's, like the rest
  int32_t num_queries;
  int32_t context;
};

// Grids and lists of one step.
struct AttentionPlan {
  bool tensor_cores = false;  // else the general kernel, which needs no plan
  int64_t num_sequences = 0;
  int64_t num_tokens = 0;
  int num_kv_heads = 0;
  int decode_rows = 0;   // rows of a decode block: 8 or 16
  int prompt_rows = 0;   // rows of a prompt item: kPromptRows or kHopperPromptRows
  int prompt_heads = 1;  // kv heads whose items HopperPrompts takes at about the same time
  // Blocks of HopperPrompts, each on a processor of its own: all processors, or, beside decodes, so many that
  // both end at about the same time.
  int prompt_blocks = 0;
  int decode_residents = 0;  // decode blocks that a processor is to have at a time, with room for them
  int64_t num_decode = 0;    // items, −1 ones included; without prompts at least one, otherwise maybe none
  int64_t num_prompt = 0;    // items
  DecodeItem* decode = nullptr;  // of many sequences those with the longest contexts first
  int32_t* order = nullptr;      // memory for the order of sequences
  PromptItem* prompt = nullptr;  // those that see the most keys first
  float* partial = nullptr;      // [slots, num_kv_heads, decode_rows, partial_floats(head_dim)]
  int32_t* finished = nullptr;   // [slots, num_kv_heads]: splits of a sequence that have written theirs; zero
                                 // between launches
};

// Of a row's result of a share: its dimensions, its maximum and its sum, in whole 16 bytes.
constexpr int partial_floats(int head_dim) { return head_dim + 4; }

inline constexpr int kPromptRows = 64;  // of a block
inline constexpr int kHopperPromptRows = 128;
inline constexpr int kHopperPromptKeys = 128;  // of a tile
inline constexpr int kDecodeKeys = 16;         // of a group of a warp's round
inline constexpr int kDecodeWarps = 4;         // of a block
// Decode blocks that a processor has at a time, unless it is to have fewer.
inline constexpr int kDecodeResidents = 3;

// Device memory that the plans of this state's steps need; zeroed when it is allocated.
int64_t attention_plan_bytes(const OpStateOptions& options);
// Lays the lists out in `memory` for a step; tensor_cores is false where the general kernel has to do.
// `hopper_processors`: of the device, where prompts are for HopperPrompts; otherwise 0.
AttentionPlan lay_out_plan(const AttentionPlanParams& params,
                           std::byte* memory,
                           const OpStateOptions& options,
                           int hopper_processors);
cudaError_t launch_attention_plan(const AttentionPlan& plan,
                                  const AttentionPlanParams& params,
                                  cudaStream_t stream);
// The plan must be of the same step, or of one that the graph being replayed was captured with.
cudaError_t attention_tensor_cores(const AttentionPlan& plan,
                                   const AttentionParams& params,
                                   const HopperPrompts& hopper,
                                   cudaStream_t stream);

}  // namespace llm_dist::kernels
