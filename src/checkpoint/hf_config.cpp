#include "src/checkpoint/hf_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/base/json_text.h"
#include "src/base/small_file.h"
#include "src/checkpoint/f8_scales.h"
#include "src/checkpoint/file.h"

namespace llm_dist::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

Result<Json> parse_object(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, read_small_file(path, kMaxConfigBytes));
  if (json_is_too_deep(text))
    return data_loss(format("{}: nested deeper than {} levels", path, kMaxJsonDepth));
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return data_loss(format("{}: not JSON", path));
  if (!json.is_object()) return invalid_argument(format("{}: not a JSON object", path));
  return json;
}

// Typed access to an object's fields; null counts as absent. The first wrong field is kept as the status.
class Fields {
 public:
  Fields(const Json& object, std::string origin) : object_(object), origin_(std::move(origin)) {}

  const Status& status() const { return status_; }
  bool has(const char* key) const { return find(key) != nullptr; }

  const Json* find(const char* key) const {
    auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::optional<int64_t> integer(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    auto number = to_integer(*value);
    if (!number) wrong(key, "an integer");
    return number;
  }
  int64_t required_integer(const char* key) {
    if (!has(key)) missing(key);
    return integer(key).value_or(0);
  }
  std::optional<double> number(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) return value->get<double>();
    wrong(key, "a number");
    return std::nullopt;
  }
  std::optional<bool> boolean(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_boolean()) return value->get<bool>();
    wrong(key, "true or false");
    return std::nullopt;
  }
  std::optional<std::string> text(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_string()) return value->get<std::string>();
    wrong(key, "a string");
    return std::nullopt;
  }
  // A token id or a list of them.
  std::vector<int32_t> ids(const char* key) {
    std::vector<int32_t> ids;
    const Json* value = find(key);
    if (value == nullptr) return ids;
    Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& item : list) {
      auto id = to_integer(item);
      if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
        wrong(key, "a token id or a list of token ids");
        return {};
      }
      ids.push_back(static_cast<int32_t>(*id));
    }
    return ids;
  }
  void missing(const char* key) { fail(invalid_argument(format("{}: field {} is missing", origin_, key))); }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const std::string& origin() const { return origin_; }

 private:
  static std::optional<int64_t> to_integer(const Json& value) {
    if (value.is_number_unsigned()) {
      auto number = value.get<uint64_t>();
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(number);
    }
    return value.is_number_integer() ? std::optional(value.get<int64_t>()) : std::nullopt;
  }
  void wrong(const char* key, std::string_view wanted) {
    fail(invalid_argument(format("{}: field {} is not {}", origin_, key, wanted)));
  }

  const Json& object_;
  std::string origin_;
  Status status_;
};

// "LlamaForCausalLM" → "llama"; model_type wins where both stand there, since it is spelled the same
// everywhere.
std::string architecture_of(Fields& fields) {
  std::string name;
  if (const Json* list = fields.find("architectures");
      list != nullptr && list->is_array() && !list->empty()) {
    if (list->front().is_string()) name = list->front().get<std::string>();
    constexpr std::string_view kSuffix = "ForCausalLM";
    if (!name.ends_with(kSuffix)) {
      fields.fail(
          unimplemented(format("{}: architectures names {}; …ForCausalLM is served", fields.origin(), name)));
      return {};
    }
    name.resize(name.size() - kSuffix.size());
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  }
  name = fields.text("model_type").value_or(name);
  if (name.empty()) fields.missing("architectures");
  return name;
}

void read_scaling(Fields& fields, RopeConfig& rope) {
  std::string type = fields.text("rope_type").value_or(fields.text("type").value_or("default"));
  rope.factor = fields.number("factor").value_or(1.0);
  if (type == "default") return;
  if (!fields.has("factor")) fields.missing("factor");
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    rope.low_freq_factor = fields.number("low_freq_factor").value_or(1.0);
    rope.high_freq_factor = fields.number("high_freq_factor").value_or(4.0);
    rope.original_max_position_embeddings = fields.required_integer("original_max_position_embeddings");
  } else {
    fields.fail(unimplemented(
        format("{}: rope type {}; default, linear and llama3 are served", fields.origin(), type)));
  }
}

// Newer files keep theta and scaling together in rope_parameters.
Status read_rope(Fields& fields, RopeConfig& rope) {
  rope.theta = fields.number("rope_theta").value_or(10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* object = fields.find(key);
    if (object == nullptr) continue;
    if (!object->is_object())
      return invalid_argument(format("{}: field {} is not an object", fields.origin(), key));
    Fields scaling(*object, format("{}: {}", fields.origin(), key));
    rope.theta = scaling.number("rope_theta").value_or(rope.theta);
    read_scaling(scaling, rope);
    RETURN_IF_ERROR(scaling.status());
  }
  return ok_status();
}

std::optional<DType> dtype_named(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16" || name == "half") return DType::kF16;
  if (name == "float32" || name == "float") return DType::kF32;
  return std::nullopt;
}

void read_dtype(Fields& fields, ModelConfig& config) {
  auto name = fields.has("dtype") ? fields.text("dtype") : fields.text("torch_dtype");
  if (!name) return;
  auto dtype = dtype_named(*name);
  if (!dtype)
    fields.fail(unimplemented(
        format("{}: torch_dtype {}; bfloat16, float16 and float32 are served", fields.origin(), *name)));
  config.torch_dtype = dtype.value_or(config.torch_dtype);
}

void read_shape(Fields& fields, ModelConfig& config) {
  config.hidden_size = fields.required_integer("hidden_size");
  config.num_layers = fields.required_integer("num_hidden_layers");
  config.num_heads = fields.required_integer("num_attention_heads");
  config.num_kv_heads = fields.integer("num_key_value_heads").value_or(config.num_heads);
  config.intermediate_size = fields.required_integer("intermediate_size");
  config.vocab_size = fields.required_integer("vocab_size");
  config.max_position_embeddings = fields.integer("max_position_embeddings").value_or(2048);
  if (auto head_dim = fields.integer("head_dim")) {
    config.head_dim = *head_dim;
  } else if (config.num_heads > 0 && config.hidden_size % config.num_heads == 0) {
    config.head_dim = config.hidden_size / config.num_heads;
  } else {
    fields.fail(invalid_argument(
        format("{}: hidden_size = {} is no multiple of num_attention_heads = {}, and there is no head_dim",
               fields.origin(),
               config.hidden_size,
               config.num_heads)));
  }
}

// compressed-tensors: every group of layers has weights of 8-bit floats, scaled once and for all.
bool compresses_to_f8(const Json& quantization) {
  const Json groups = quantization.value("config_groups", Json());
  if (quantization.value("format", Json()) != "float-quantized" || !groups.is_object() || groups.empty())
    return false;
  return std::all_of(groups.begin(), groups.end(), [](const Json& group) {
    const Json weights = group.is_object() ? group.value("weights", Json()) : Json();
    return weights.is_object() && weights.value("num_bits", Json()) == 8 &&
           weights.value("type", Json()) == "float" && weights.value("dynamic", Json(false)) == false;
  });
}

// The forms whose tensors F8Scales knows. How a file would have activations quantized is not asked: a device
// that does so takes a scale from each token.
void read_quantization(Fields& fields, ModelConfig& config) {
  const Json* quantization = fields.find("quantization_config");
  if (quantization == nullptr) return;
  const Json method = quantization->is_object() ? quantization->value("quant_method", Json()) : Json();
  const std::string name = method.is_string() ? method.get<std::string>() : "?";
  const bool served = name == "fp8" || (name == "compressed-tensors" && compresses_to_f8(*quantization));
  if (!served) {
    fields.fail(unimplemented(
        format("{}: quantization_config ({}) is not served; fp8 and compressed-tensors with float-quantized "
               "weights of 8 bits are",
               fields.origin(),
               name)));
    return;
  }
  const Json block = quantization->value("weight_block_size", Json());
  if (!block.is_null() && block != Json::array({F8Scales::kBlock, F8Scales::kBlock})) {
    fields.fail(unimplemented(format("{}: weight_block_size {}; [{}, {}] is served",
                                     fields.origin(),
                                     block.dump(),
                                     F8Scales::kBlock,
                                     F8Scales::kBlock)));
  }
  config.quantization = WeightScheme::kF8E4M3;
}

void read_unserved(Fields& fields) {
  if (fields.number("partial_rotary_factor").value_or(1.0) != 1.0)
    fields.fail(unimplemented(format("{}: partial_rotary_factor is not served", fields.origin())));
  const std::string activation = fields.text("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish")  // two names for one function
    fields.fail(unimplemented(format("{}: hidden_act {}; silu is served", fields.origin(), activation)));
}

// Into a valid config: what is wrong with it afterwards comes from this file.
Status read_generation_config(const std::string& path, ModelConfig& config) {
  auto json = parse_object(path);
  if (!json.ok() && json.status().code() == StatusCode::kNotFound) return ok_status();
  RETURN_IF_ERROR(json.status());
  Fields fields(*json, path);
  GenerationDefaults& defaults = config.generation;
  defaults.do_sample = fields.boolean("do_sample");
  defaults.temperature = fields.number("temperature");
  defaults.top_k = fields.integer("top_k");
  defaults.top_p = fields.number("top_p");
  defaults.min_p = fields.number("min_p");
  defaults.repetition_penalty = fields.number("repetition_penalty");
  defaults.max_new_tokens = fields.integer("max_new_tokens");
  for (int32_t id : fields.ids("eos_token_id")) add_unique(config.eos_ids, id);
  auto bos = fields.ids("bos_token_id");
  if (!config.bos_id && !bos.empty()) config.bos_id = bos.front();
  RETURN_IF_ERROR(fields.status());
  return validate(config, path);
}

// A float that stands for a short decimal (1e-5 stored as f32) is written as that decimal.
double shortest(double value) {
  auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  for (int digits = 1; digits < 9; ++digits) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    double candidate = std::strtod(text, nullptr);
    if (static_cast<float>(candidate) == narrow) return candidate;
  }
  return value;
}

// GGUF writers keep only the factors that a llama3 scaling comes to. The published models share its other
// numbers.
Result<RopeConfig> with_named_scaling(RopeConfig rope, int64_t head_dim) {
  const std::vector<float>& factors = rope.frequency_factors;
  if (factors.empty()) return rope;
  RopeConfig named{.theta = rope.theta,
                   .scaling = RopeScaling::kLlama3,
                   .factor = static_cast<double>(*std::max_element(factors.begin(), factors.end())),
                   .low_freq_factor = 1.0,
                   .high_freq_factor = 4.0,
                   .original_max_position_embeddings = 8192};
  auto wanted = rope_inverse_frequencies(rope, head_dim);
  auto got = rope_inverse_frequencies(named, head_dim);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (std::fabs(got[i] / wanted[i] - 1.0f) > 1e-3f)
      return unimplemented(
          "these rope frequency factors are not those of a llama3 scaling; config.json cannot hold them");
  return named;
}

Json rope_json(const RopeConfig& rope) {
  if (rope.scaling == RopeScaling::kNone) return nullptr;
  Json json = {{"rope_type", to_string(rope.scaling)}, {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::kLlama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  return json;
}

std::string_view torch_name(DType dtype) {
  if (dtype == DType::kF32) return "float32";
  return dtype == DType::kF16 ? "float16" : "bfloat16";
}

std::string class_name(std::string architecture) {
  if (!architecture.empty())
    architecture[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(architecture[0])));
  return architecture + "ForCausalLM";
}

// Names out of a GGUF file need not be UTF-8.
std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string generation_json(const ModelConfig& config) {
  const GenerationDefaults& defaults = config.generation;
  Json json = Json::object();
  auto put = [&json](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  put("do_sample", defaults.do_sample);
  put("temperature", defaults.temperature);
  put("top_k", defaults.top_k);
  put("top_p", defaults.top_p);
  put("min_p", defaults.min_p);
  put("repetition_penalty", defaults.repetition_penalty);
  put("max_new_tokens", defaults.max_new_tokens);
  put("bos_token_id", config.bos_id);
  if (!config.eos_ids.empty()) json["eos_token_id"] = config.eos_ids;
  return dump(json);
}

}  // namespace

Result<HfConfig> read_hf_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  ASSIGN_OR_RETURN(const Json json, parse_object(path));
  Fields fields(json, path);
  HfConfig result;
  ModelConfig& config = result.config;
  config.architecture = architecture_of(fields);
  read_unserved(fields);
  read_quantization(fields, config);
  read_shape(fields, config);
  config.rms_norm_eps = fields.number("rms_norm_eps").value_or(1e-6);
  result.names_tying = fields.has("tie_word_embeddings");
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(false);
  config.attention_bias = fields.boolean("attention_bias").value_or(false);
  config.mlp_bias = fields.boolean("mlp_bias").value_or(false);
  read_dtype(fields, config);
  config.eos_ids = fields.ids("eos_token_id");
  auto bos = fields.ids("bos_token_id");
  if (!bos.empty()) config.bos_id = bos.front();
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(read_rope(fields, config.rope));
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(validate(config, path));
  RETURN_IF_ERROR(read_generation_config(directory + "/generation_config.json", config));
  return result;
}

Result<HfConfigTexts> write_hf_config(const ModelConfig& config) {
  ASSIGN_OR_RETURN(RopeConfig rope, with_named_scaling(config.rope, config.head_dim));
  Json json = {{"architectures", {class_name(config.architecture)}},
               {"model_type", config.architecture},
               {"hidden_act", "silu"},
               {"hidden_size", config.hidden_size},
               {"num_hidden_layers", config.num_layers},
               {"num_attention_heads", config.num_heads},
               {"num_key_value_heads", config.num_kv_heads},
               {"head_dim", config.head_dim},
               {"intermediate_size", config.intermediate_size},
               {"vocab_size", config.vocab_size},
               {"max_position_embeddings", config.max_position_embeddings},
               {"rms_norm_eps", shortest(config.rms_norm_eps)},
               {"rope_theta", shortest(rope.theta)},
               {"rope_scaling", rope_json(rope)},
               {"tie_word_embeddings", config.tie_word_embeddings},
               {"attention_bias", config.attention_bias},
               {"mlp_bias", config.mlp_bias},
               {"torch_dtype", torch_name(config.torch_dtype)}};
  if (config.bos_id) json["bos_token_id"] = *config.bos_id;
  if (!config.eos_ids.empty()) json["eos_token_id"] = config.eos_ids;
  return HfConfigTexts{.config_json = dump(json), .generation_config_json = generation_json(config)};
}

}  // namespace llm_dist::checkpoint
