// ModelConfig from and to a Hugging Face directory's config.json and generation_config.json.
#pragma once

#include <optional>
#include <string>

#include "src/base/status.h"
#include "src/checkpoint/model_config.h"

namespace llm_dist::checkpoint {

struct HfConfig {
  ModelConfig config;
  // False where config.json does not say whether embeddings are tied; the tensors then decide.
  bool names_tying = false;
};

// Reads DIR/config.json and, if present, DIR/generation_config.json; both validated. kNotFound without
// config.json, kInvalidArgument naming the field that is missing, mistyped or out of range, kUnimplemented
// for what is known but not served (a quantization_config that is not of FP8 weights, other rope scalings,
// partial rotary embedding).
Result<HfConfig> read_hf_config(const std::string& directory);

// The text of a config.json and a generation_config.json that read back as `config`. kUnimplemented where the
// rope frequency factors are not those of a llama3 scaling.
struct HfConfigTexts {
  std::string config_json;
  std::string generation_config_json;
};
Result<HfConfigTexts> write_hf_config(const ModelConfig& config);

}  // namespace llm_dist::checkpoint
