// What GGUF metadata and tensor names mean: ModelConfig, TokenizerSpec and Hugging Face tensor names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/base/tokenizer_spec.h"
#include "src/checkpoint/gguf.h"
#include "src/checkpoint/model_config.h"
#include "src/checkpoint/tensor_info.h"

namespace llm_dist::checkpoint {

// "blk.3.attn_q.weight" → "model.layers.3.self_attn.q_proj.weight"; names without a counterpart stay as they
// are.
std::string hf_name_of_gguf(std::string_view name);
// The inverse, for writing GGUF files.
std::string gguf_name_of_hf(std::string_view name);

// Keys ARCH.* and general.*; `origin` names the file in errors. Embeddings count as tied where there is no
// output.weight. Does not read rope_freqs.weight: the caller puts its values into rope.frequency_factors.
Result<ModelConfig> config_from_gguf(const GgufFile& gguf, const std::string& origin);

Result<TokenizerSpec> tokenizer_from_gguf(const GgufFile& gguf, const std::string& origin);

// The model's tensors under Hugging Face names, without rope_freqs.weight; q and k of llama are marked as
// interleaved.
Result<std::vector<TensorInfo>> tensors_from_gguf(const GgufFile& gguf,
                                                  const ModelConfig& config,
                                                  const std::string& origin);

// GGUF row (of a head permuted for interleaved rotary embedding) that holds Hugging Face row `row`: of head
// h, row half·D/2 + j stands at 2·j + half.
constexpr int64_t interleaved_row(int64_t row, int64_t head_dim) {
  int64_t head = row / head_dim;
  int64_t in_head = row % head_dim;
  int64_t half = in_head / (head_dim / 2);
  return head * head_dim + 2 * (in_head % (head_dim / 2)) + half;
}

}  // namespace llm_dist::checkpoint
