// ModelConfig: the numbers that shape a decoder, from a Hugging Face config.json or from GGUF metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/status.h"
#include "src/base/weight.h"

namespace llm_dist::checkpoint {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3 };
std::string_view to_string(RopeScaling scaling);  // "none", "linear", "llama3"

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                           // linear and llama3
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int64_t original_max_position_embeddings = 0;  // llama3
  // GGUF's rope_freqs.weight, [head_dim / 2]: frequency i is divided by factor i. It replaces llama3 scaling.
  std::vector<float> frequency_factors;
};

// Sampling defaults that a model ships (generation_config.json); absent where it names none.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> max_new_tokens;
};

struct ModelConfig {
  std::string architecture;  // "llama", whether the file said LlamaForCausalLM or llama
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  DType torch_dtype = DType::kBF16;  // of the dense weights; what activations use unless told otherwise
  // What the file's quantization_config says the linear layers' weights are in.
  std::optional<WeightScheme> quantization;
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // every id that ends a generation, without repeats
  GenerationDefaults generation;
};

// kInvalidArgument naming `origin` and the first field that is out of range or contradicts another.
Status validate(const ModelConfig& config, std::string_view origin);

// The most positions of one sequence that may be asked for: max_position_embeddings, `factor` times as many
// with linear scaling. Whether a file with such a scaling gives the context before or after it differs by
// model (Chen et al. 2023, "Extending Context Window of Large Language Models via Position Interpolation",
// scale positions into the trained range), so that more than max_position_embeddings has to be asked for.
int64_t longest_context(const ModelConfig& config);

// Rotary frequencies in radians per position, [head_dim / 2]: theta^(−2i / head_dim), scaled as `rope` says.
// The llama3 rule is that of the Llama 3.1 model card: long wavelengths divided by `factor`, a linear blend
// between.
std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim);

// Appends `id` unless it is there.
void add_unique(std::vector<int32_t>& ids, int32_t id);

}  // namespace llm_dist::checkpoint
