#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/checkpoint/gguf_model.h"
#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/hf_index.h"
#include "src/checkpoint/hf_tokenizer.h"
#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::checkpoint {
namespace {

using Json = nlohmann::json;

Result<HfConfig> read_with(const Json& patch, const Json& generation = nullptr) {
  TempDir dir;
  Json config = Json::parse(tiny_config_json());
  config.merge_patch(patch);
  write_file(dir / "config.json", config.dump());
  if (!generation.is_null()) write_file(dir / "generation_config.json", generation.dump());
  return read_hf_config(dir.path());
}

TEST(HfConfig, ReadsWhatWasWritten) {
  auto read = read_with(Json::object());
  ASSERT_OK(read);
  const ModelConfig& config = read->config;
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.vocab_size, 50);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.torch_dtype, DType::kF32);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{2});
}

// A tree of this depth could be parsed, and then not be copied, compared or printed.
std::string nested(const std::string& before, const std::string& after) {
  constexpr int kLevels = 200'000;
  return before + std::string(kLevels, '[') + std::string(kLevels, ']') + after;
}

TEST(HfConfig, DeepNestingIsRefused) {
  TempDir dir;
  for (const char* field : {"{\"eos_token_id\":", "{\"quantization_config\":{\"quant_method\":"}) {
    write_file(dir / "config.json",
               nested(field, std::string_view(field).starts_with("{\"eos") ? "}" : "}}"));
    auto read = read_hf_config(dir.path());
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(read.status().message().find("nested"), std::string::npos);
  }
  write_file(dir / "model.safetensors.index.json", nested("{\"weight_map\":{\"x\":", "}}"));
  EXPECT_NE(list_hf_files(dir.path()).status().message().find("nested"), std::string::npos);
}

TEST(HfConfig, DeepTokenizerFilesAreRefused) {
  TempDir dir;
  for (const char* before : {"{\"added_tokens\":", "{\"added_tokens\":[{\"content\":\"<s>\",\"id\":"}) {
    write_file(dir / "tokenizer.json", nested(before, "}"));
    write_file(dir / "tokenizer_config.json", R"({"bos_token": "<s>"})");
    EXPECT_NE(read_hf_tokenizer(dir.path()).status().message().find("tokenizer.json: nested"),
              std::string::npos);
  }
  write_file(dir / "tokenizer_config.json", nested(R"({"chat_template":[{"template":"x","name":)", "}]}"));
  EXPECT_NE(read_hf_tokenizer(dir.path()).status().message().find("tokenizer_config.json: nested"),
            std::string::npos);
}

TEST(HfIndex, AShardIsAFileBesideTheIndex) {
  TempDir dir;
  write_file(dir / "a", "x");
  for (const char* name : {"a\\u0000b", ".", "..", "", "../a"}) {
    write_file(dir / "model.safetensors.index.json", format(R"({"weight_map":{"x":"{}"}})", name));
    EXPECT_FALSE(list_hf_files(dir.path()).ok()) << name;
  }
}

// What a GGUF file calls its architecture need not be text.
TEST(HfConfig, WritesAnArchitectureThatIsNoUtf8) {
  ModelConfig config = read_with(Json::object())->config;
  config.architecture = "l\xFFm";
  auto texts = write_hf_config(config);
  ASSERT_OK(texts);
  EXPECT_TRUE(Json::accept(texts->config_json));
}

TEST(HfConfig, OldLlamaWithoutHeadCounts) {
  auto read = read_with({{"num_key_value_heads", nullptr}, {"head_dim", nullptr}, {"model_type", nullptr}});
  ASSERT_OK(read);
  EXPECT_EQ(read->config.num_kv_heads, 4);
  EXPECT_EQ(read->config.head_dim, 16);
  EXPECT_EQ(read->config.architecture, "llama");
}

TEST(HfConfig, Llama3ScalingInBothSpellings) {
  Json scaling = {{"rope_type", "llama3"},
                  {"factor", 8.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 8192}};
  auto old_style = read_with({{"rope_scaling", scaling}, {"rope_theta", 500000.0}});
  ASSERT_OK(old_style);
  scaling["rope_theta"] = 500000.0;
  auto new_style = read_with({{"rope_parameters", scaling}, {"rope_theta", nullptr}});
  ASSERT_OK(new_style);
  for (const RopeConfig& rope : {old_style->config.rope, new_style->config.rope}) {
    EXPECT_EQ(rope.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(rope.theta, 500000.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.original_max_position_embeddings, 8192);
  }
}

TEST(HfConfig, GenerationDefaultsAndSeveralEosIds) {
  auto read = read_with({{"eos_token_id", {2, 7}}},
                        {{"temperature", 0.6},
                         {"top_k", 40},
                         {"top_p", 0.9},
                         {"repetition_penalty", 1.1},
                         {"do_sample", true},
                         {"eos_token_id", {7, 9}}});
  ASSERT_OK(read);
  EXPECT_EQ(read->config.eos_ids, (std::vector<int32_t>{2, 7, 9}));
  const GenerationDefaults& defaults = read->config.generation;
  EXPECT_EQ(defaults.temperature, 0.6);
  EXPECT_EQ(defaults.top_k, 40);
  EXPECT_EQ(defaults.top_p, 0.9);
  EXPECT_EQ(defaults.repetition_penalty, 1.1);
  EXPECT_EQ(defaults.do_sample, true);
  EXPECT_FALSE(defaults.min_p.has_value());
}

TEST(HfConfig, BadFieldsAreNamed) {
  struct Case {
    Json patch;
    std::string_view word;
  };
  const Case cases[] = {
      {{{"hidden_size", nullptr}}, "hidden_size is missing"},
      {{{"hidden_size", "64"}}, "hidden_size is not an integer"},
      {{{"hidden_size", 64.5}}, "hidden_size is not an integer"},
      {{{"hidden_size", 0}}, "hidden_size = 0"},
      {{{"hidden_size", -64}}, "hidden_size = -64"},
      {{{"num_hidden_layers", 9000000000}}, "num_hidden_layers = 9000000000"},
      {{{"vocab_size", 18446744073709551615u}}, "vocab_size is not an integer"},
      {{{"num_key_value_heads", 3}}, "no multiple of num_key_value_heads"},
      {{{"num_attention_heads", 0}}, "num_attention_heads = 0"},
      {{{"head_dim", 15}}, "head_dim = 15"},
      {{{"head_dim", nullptr}, {"num_attention_heads", 6}}, "no multiple of num_attention_heads"},
      {{{"rms_norm_eps", 2.0}}, "rms_norm_eps"},
      {{{"rope_theta", -1.0}}, "rope_theta"},
      {{{"rope_theta", "big"}}, "rope_theta is not a number"},
      {{{"eos_token_id", 50}}, "eos_token_id = 50"},
      {{{"eos_token_id", {{"a", 1}}}}, "eos_token_id is not a token id"},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings is not true or false"},
      {{{"rope_scaling", {{"rope_type", "linear"}}}}, "factor is missing"},
      {{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}},
       "original_max_position_embeddings is missing"},
      {{{"rope_scaling", {{"rope_type", "linear"}, {"factor", 0.0}}}}, "rope_scaling.factor"},
      {{{"rope_scaling", 3}}, "rope_scaling is not an object"},
  };
  for (const Case& c : cases)
    expect_failure(read_with(c.patch), StatusCode::kInvalidArgument, {"config.json", c.word});
}

TEST(HfConfig, BadGenerationDefaultsAreNamed) {
  for (const char* field : {"eos_token_id", "bos_token_id"}) {
    const Json config = {{"bos_token_id", nullptr}};
    const std::string word = format("{} = 50", field);
    expect_failure(
        read_with(config, {{field, 50}}), StatusCode::kInvalidArgument, {"generation_config.json", word});
  }
}

TEST(HfConfig, KnownButNotServed) {
  expect_failure(read_with({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}}),
                 StatusCode::kUnimplemented,
                 {"yarn"});
  expect_failure(
      read_with({{"quantization_config", {{"quant_method", "gptq"}}}}), StatusCode::kUnimplemented, {"gptq"});
  expect_failure(
      read_with({{"torch_dtype", "float8_e4m3fn"}}), StatusCode::kUnimplemented, {"float8_e4m3fn"});
  expect_failure(read_with({{"architectures", {"BertModel"}}}), StatusCode::kUnimplemented, {"BertModel"});
  expect_failure(
      read_with({{"partial_rotary_factor", 0.5}}), StatusCode::kUnimplemented, {"partial_rotary_factor"});
  expect_failure(read_with({{"hidden_act", "gelu"}}), StatusCode::kUnimplemented, {"hidden_act", "gelu"});
  ASSERT_OK(read_with({{"hidden_act", "swish"}}));  // another name for it
}

TEST(HfConfig, NotJson) {
  TempDir dir;
  expect_failure(read_hf_config(dir.path()), StatusCode::kNotFound, {"config.json"});
  write_file(dir / "config.json", "{\"hidden_size\": ");
  expect_failure(read_hf_config(dir.path()), StatusCode::kDataLoss, {"config.json", "not JSON"});
  write_file(dir / "config.json", "[1]");
  expect_failure(read_hf_config(dir.path()), StatusCode::kInvalidArgument, {"not a JSON object"});
}

TEST(Rope, LinearScalingAllowsLongerContexts) {
  ModelConfig stretched;
  stretched.max_position_embeddings = 4096;
  EXPECT_EQ(longest_context(stretched), 4096);
  stretched.rope.factor = 4.0;  // means nothing without a kind of scaling
  EXPECT_EQ(longest_context(stretched), 4096);
  stretched.rope.scaling = RopeScaling::kLinear;
  EXPECT_EQ(longest_context(stretched), 16384);
  stretched.max_position_embeddings = int64_t{1} << 31;
  EXPECT_EQ(longest_context(stretched), std::numeric_limits<int32_t>::max());
  stretched.max_position_embeddings = 4096;
  stretched.rope.scaling = RopeScaling::kLlama3;  // whose files give the context behind it
  EXPECT_EQ(longest_context(stretched), 4096);
}

TEST(Rope, FrequenciesWithoutScaling) {
  auto frequencies = rope_inverse_frequencies({.theta = 10000.0, .frequency_factors = {}}, 64);
  ASSERT_EQ(frequencies.size(), 32u);
  EXPECT_FLOAT_EQ(frequencies[0], 1.0f);
  EXPECT_FLOAT_EQ(frequencies[16], 0.01f);
  auto linear = rope_inverse_frequencies(
      {.theta = 10000.0, .scaling = RopeScaling::kLinear, .factor = 4.0, .frequency_factors = {}}, 64);
  EXPECT_FLOAT_EQ(linear[16], 0.0025f);
}

// The rule as the Llama 3.1 reference states it, by wavelength.
TEST(Rope, Llama3FollowsTheReference) {
  RopeConfig rope{.theta = 500000.0,
                  .scaling = RopeScaling::kLlama3,
                  .factor = 8.0,
                  .low_freq_factor = 1.0,
                  .high_freq_factor = 4.0,
                  .original_max_position_embeddings = 8192,
                  .frequency_factors = {}};
  auto got = rope_inverse_frequencies(rope, 128);
  int blended = 0;
  for (size_t i = 0; i < 64; ++i) {
    double plain = std::pow(500000.0, -static_cast<double>(i) / 64.0);
    double wavelength = 2.0 * M_PI / plain;
    double want = plain;
    if (wavelength > 8192.0) {
      want = plain / 8.0;
    } else if (wavelength >= 8192.0 / 4.0) {
      double smooth = (8192.0 / wavelength - 1.0) / 3.0;
      want = (1.0 - smooth) * plain / 8.0 + smooth * plain;
      ++blended;
    }
    EXPECT_NEAR(got[i] / want, 1.0, 1e-6) << i;
  }
  EXPECT_GT(blended, 0);
}

// GGUF keeps factors only; a config.json made from them has the same frequencies.
TEST(Rope, FrequencyFactorsBecomeLlama3Again) {
  RopeConfig rope{.theta = 500000.0,
                  .scaling = RopeScaling::kLlama3,
                  .factor = 32.0,
                  .low_freq_factor = 1.0,
                  .high_freq_factor = 4.0,
                  .original_max_position_embeddings = 8192,
                  .frequency_factors = {}};
  ModelConfig config = tiny_config();
  config.head_dim = 64;
  RopeConfig plain{.theta = 500000.0, .frequency_factors = {}};
  auto scaled = rope_inverse_frequencies(rope, 64);
  auto unscaled = rope_inverse_frequencies(plain, 64);
  config.rope = plain;
  for (size_t i = 0; i < scaled.size(); ++i) config.rope.frequency_factors.push_back(unscaled[i] / scaled[i]);
  auto texts = write_hf_config(config);
  ASSERT_OK(texts);
  TempDir dir;
  write_file(dir / "config.json", texts->config_json);
  auto read = read_hf_config(dir.path());
  ASSERT_OK(read);
  EXPECT_EQ(read->config.rope.scaling, RopeScaling::kLlama3);
  EXPECT_NEAR(read->config.rope.factor, 32.0, 1e-3);
  config.rope.frequency_factors[3] = 5.0f;
  expect_failure(write_hf_config(config), StatusCode::kUnimplemented, {"rope frequency factors"});
}

TEST(GgufModel, NamesGoBothWays) {
  for (const TensorInfo& tensor : tiny_tensors()) {
    std::string gguf = gguf_name_of_hf(tensor.name);
    EXPECT_NE(gguf, tensor.name);
    EXPECT_EQ(hf_name_of_gguf(gguf), tensor.name);
  }
  EXPECT_EQ(hf_name_of_gguf("blk.31.attn_q.bias"), "model.layers.31.self_attn.q_proj.bias");
  EXPECT_EQ(hf_name_of_gguf("output.weight"), "lm_head.weight");
  EXPECT_EQ(hf_name_of_gguf("something.else"), "something.else");
}

TEST(GgufModel, RowsOfAHeadInterleave) {
  EXPECT_EQ(interleaved_row(0, 8), 0);
  EXPECT_EQ(interleaved_row(4, 8), 1);
  EXPECT_EQ(interleaved_row(1, 8), 2);
  EXPECT_EQ(interleaved_row(8 + 7, 8), 8 + 7);
}

}  // namespace
}  // namespace llm_dist::checkpoint
