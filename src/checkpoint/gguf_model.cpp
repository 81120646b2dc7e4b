#include "src/checkpoint/gguf_model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

namespace llm_dist::checkpoint {
namespace {

struct NamePair {
  std::string_view gguf;
  std::string_view hf;
};

constexpr std::array<NamePair, 3> kModelNames = {
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};
constexpr std::array<NamePair, 11> kLayerNames = {{{"attn_norm", "input_layernorm"},
                                                   {"ffn_norm", "post_attention_layernorm"},
                                                   {"attn_q", "self_attn.q_proj"},
                                                   {"attn_k", "self_attn.k_proj"},
                                                   {"attn_v", "self_attn.v_proj"},
                                                   {"attn_output", "self_attn.o_proj"},
                                                   {"attn_q_norm", "self_attn.q_norm"},
                                                   {"attn_k_norm", "self_attn.k_norm"},
                                                   {"ffn_gate", "mlp.gate_proj"},
                                                   {"ffn_up", "mlp.up_proj"},
                                                   {"ffn_down", "mlp.down_proj"}}};
constexpr std::string_view kGgufLayer = "blk.";
constexpr std::string_view kHfLayer = "model.layers.";

// Maps a name "[layer prefix N.]STEM.SUFFIX" from one side of the tables to the other.
std::string translate(std::string_view name,
                      std::string_view NamePair::* from,
                      std::string_view NamePair::* to,
                      std::string_view layer_from,
                      std::string_view layer_to) {
  auto suffix_at = name.rfind('.');
  if (suffix_at == std::string_view::npos) return std::string(name);
  std::string_view stem = name.substr(0, suffix_at);
  std::string_view suffix = name.substr(suffix_at);
  if (!stem.starts_with(layer_from)) {
    for (const NamePair& pair : kModelNames)
      if (pair.*from == stem) return std::string(pair.*to) + std::string(suffix);
    return std::string(name);
  }
  stem.remove_prefix(layer_from.size());
  auto dot = stem.find('.');
  if (dot == std::string_view::npos) return std::string(name);
  for (const NamePair& pair : kLayerNames)
    if (pair.*from == stem.substr(dot + 1))
      return format("{}{}.{}{}", layer_to, stem.substr(0, dot), pair.*to, suffix);
  return std::string(name);
}

// Typed lookups with the first failure kept.
class Keys {
 public:
  Keys(const GgufMetadata& metadata, const std::string& origin) : metadata_(metadata), origin_(origin) {}

  template <typename T>
  std::optional<T> get(const std::string& key) {
    auto found = metadata_.find(key);
    if (found == metadata_.end()) return std::nullopt;
    if (const T* value = std::get_if<T>(&found->second)) return *value;
    if constexpr (std::is_same_v<T, double>)
      if (const auto* integer = std::get_if<int64_t>(&found->second)) return static_cast<double>(*integer);
    fail(data_loss(format("{}: key {} has an unexpected type", origin_, key)));
    return std::nullopt;
  }
  int64_t required_integer(const std::string& key) {
    auto value = get<int64_t>(key);
    if (!value) fail(data_loss(format("{}: key {} is missing", origin_, key)));
    return value.value_or(0);
  }
  std::optional<int32_t> token_id(const std::string& key) {
    auto value = get<int64_t>(key);
    if (!value) return std::nullopt;
    if (*value < 0 || *value > std::numeric_limits<int32_t>::max()) {
      fail(data_loss(format("{}: key {} = {} is no token id", origin_, key, *value)));
      return std::nullopt;
    }
    return static_cast<int32_t>(*value);
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& status() const { return status_; }

 private:
  const GgufMetadata& metadata_;
  const std::string& origin_;
  Status status_;
};

const GgufTensor* find_tensor(const GgufFile& gguf, std::string_view name) {
  auto found =
      std::find_if(gguf.tensors.begin(), gguf.tensors.end(), [&](const auto& t) { return t.name == name; });
  return found == gguf.tensors.end() ? nullptr : &*found;
}

void read_rope(Keys& keys, const std::string& prefix, const std::string& origin, ModelConfig& config) {
  config.rope.theta = keys.get<double>(prefix + "rope.freq_base").value_or(10000.0);
  auto legacy_scale = keys.get<double>(prefix + "rope.scale_linear");
  auto type = keys.get<std::string>(prefix + "rope.scaling.type").value_or(legacy_scale ? "linear" : "none");
  double factor = keys.get<double>(prefix + "rope.scaling.factor").value_or(legacy_scale.value_or(1.0));
  if (type == "linear") {
    config.rope.scaling = RopeScaling::kLinear;
    config.rope.factor = factor;
  } else if (type != "none") {
    keys.fail(unimplemented(format("{}: rope scaling {}; none and linear are served", origin, type)));
  }
  int64_t rotary = keys.get<int64_t>(prefix + "rope.dimension_count").value_or(config.head_dim);
  if (rotary != config.head_dim)
    keys.fail(unimplemented(
        format("{}: {}rope.dimension_count = {} with head_dim = {}: partial rotary embedding is not served",
               origin,
               prefix,
               rotary,
               config.head_dim)));
}

void read_shape(Keys& keys, const std::string& prefix, ModelConfig& config) {
  config.hidden_size = keys.required_integer(prefix + "embedding_length");
  config.num_layers = keys.required_integer(prefix + "block_count");
  config.num_heads = keys.required_integer(prefix + "attention.head_count");
  config.num_kv_heads = keys.get<int64_t>(prefix + "attention.head_count_kv").value_or(config.num_heads);
  config.intermediate_size = keys.required_integer(prefix + "feed_forward_length");
  config.max_position_embeddings = keys.required_integer(prefix + "context_length");
  config.rms_norm_eps = keys.get<double>(prefix + "attention.layer_norm_rms_epsilon").value_or(1e-6);
  int64_t derived = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  config.head_dim = keys.get<int64_t>(prefix + "attention.key_length").value_or(derived);
}

void read_ids(Keys& keys, ModelConfig& config) {
  config.bos_id = keys.token_id("tokenizer.ggml.bos_token_id");
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (auto id = keys.token_id(key)) add_unique(config.eos_ids, *id);
}

DType dense_dtype(WeightScheme scheme) {
  if (scheme == WeightScheme::kF32) return DType::kF32;
  return scheme == WeightScheme::kF16 ? DType::kF16 : DType::kBF16;
}

std::string token_text(const std::vector<std::string>& tokens, std::optional<int32_t> id) {
  bool known = id && static_cast<size_t>(*id) < tokens.size();
  return known ? tokens[static_cast<size_t>(*id)] : std::string();
}

}  // namespace

std::string hf_name_of_gguf(std::string_view name) {
  return translate(name, &NamePair::gguf, &NamePair::hf, kGgufLayer, kHfLayer);
}

std::string gguf_name_of_hf(std::string_view name) {
  return translate(name, &NamePair::hf, &NamePair::gguf, kHfLayer, kGgufLayer);
}

Result<ModelConfig> config_from_gguf(const GgufFile& gguf, const std::string& origin) {
  Keys keys(gguf.metadata, origin);
  ModelConfig config;
  config.architecture = keys.get<std::string>("general.architecture").value_or("");
  if (config.architecture.empty())
    keys.fail(data_loss(format("{}: key general.architecture is missing", origin)));
  if (keys.get<int64_t>("split.count").value_or(1) > 1)
    keys.fail(
        unimplemented(format("{}: a GGUF split over several files is not served; merge it first", origin)));
  RETURN_IF_ERROR(keys.status());
  const std::string prefix = config.architecture + ".";
  read_shape(keys, prefix, config);
  read_rope(keys, prefix, origin, config);
  read_ids(keys, config);
  const GgufTensor* embedding = find_tensor(gguf, "token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2)
    return data_loss(format("{}: tensor token_embd.weight is missing or no matrix", origin));
  config.vocab_size = keys.get<int64_t>(prefix + "vocab_size").value_or(embedding->dims[1]);
  config.tie_word_embeddings = find_tensor(gguf, "output.weight") == nullptr;
  config.attention_bias = find_tensor(gguf, "blk.0.attn_q.bias") != nullptr;
  config.mlp_bias = find_tensor(gguf, "blk.0.ffn_down.bias") != nullptr;
  config.torch_dtype = dense_dtype(embedding->scheme);
  RETURN_IF_ERROR(keys.status());
  RETURN_IF_ERROR(validate(config, origin));
  return config;
}

Result<TokenizerSpec> tokenizer_from_gguf(const GgufFile& gguf, const std::string& origin) {
  Keys keys(gguf.metadata, origin);
  const std::string prefix = "tokenizer.ggml.";
  TokenizerSpec spec;
  spec.model = keys.get<std::string>(prefix + "model").value_or("");
  spec.pre_tokenizer = keys.get<std::string>(prefix + "pre").value_or("default");
  spec.tokens = keys.get<std::vector<std::string>>(prefix + "tokens").value_or(std::vector<std::string>());
  spec.merges = keys.get<std::vector<std::string>>(prefix + "merges").value_or(std::vector<std::string>());
  for (int64_t type : keys.get<std::vector<int64_t>>(prefix + "token_type").value_or(std::vector<int64_t>()))
    spec.token_types.push_back(static_cast<int32_t>(type));
  spec.chat_template = keys.get<std::string>("tokenizer.chat_template").value_or("");
  // Files that leave add_bos_token out mean their vocabulary's habit.
  constexpr std::string_view kLlama3[] = {"llama-bpe", "llama3", "llama-v3"};
  const bool habit =
      spec.model == "llama" || std::ranges::find(kLlama3, spec.pre_tokenizer) != std::end(kLlama3);
  spec.add_bos = keys.get<bool>(prefix + "add_bos_token").value_or(habit);
  spec.add_eos = keys.get<bool>(prefix + "add_eos_token").value_or(false);
  ModelConfig ids;
  read_ids(keys, ids);
  spec.bos_id = ids.bos_id;
  spec.eos_ids = ids.eos_ids;
  spec.bos_token = token_text(spec.tokens, spec.bos_id);
  spec.eos_token = spec.eos_ids.empty() ? "" : token_text(spec.tokens, spec.eos_ids.front());
  RETURN_IF_ERROR(keys.status());
  if (!spec.token_types.empty() && spec.token_types.size() != spec.tokens.size())
    return data_loss(
        format("{}: {} token types for {} tokens", origin, spec.token_types.size(), spec.tokens.size()));
  return spec;
}

Result<std::vector<TensorInfo>> tensors_from_gguf(const GgufFile& gguf,
                                                  const ModelConfig& config,
                                                  const std::string& origin) {
  std::vector<TensorInfo> tensors;
  for (const GgufTensor& tensor : gguf.tensors) {
    if (tensor.name == "rope_freqs.weight") continue;
    if (tensor.dims.size() > 2)
      return unimplemented(format(
          "{}: tensor {} has {} dimensions; 1 and 2 are served", origin, tensor.name, tensor.dims.size()));
    bool vector = tensor.dims.size() == 1;
    if (vector && is_quantized(tensor.scheme))
      return unimplemented(format("{}: tensor {} is a quantized vector", origin, tensor.name));
    TensorInfo info{.name = hf_name_of_gguf(tensor.name),
                    .scheme = tensor.scheme,
                    .rows = vector ? tensor.dims[0] : tensor.dims[1],
                    .cols = vector ? 1 : tensor.dims[0],
                    .offset = tensor.offset};
    bool rotary = info.name.find(".self_attn.q_proj.") != std::string::npos ||
                  info.name.find(".self_attn.k_proj.") != std::string::npos;
    if (rotary && config.architecture == "llama") {
      if (info.rows % config.head_dim != 0)
        return data_loss(format("{}: tensor {}: {} rows are no whole heads of {}",
                                origin,
                                tensor.name,
                                info.rows,
                                config.head_dim));
      info.interleaved_head_dim = config.head_dim;
    }
    tensors.push_back(std::move(info));
  }
  return tensors;
}

}  // namespace llm_dist::checkpoint
