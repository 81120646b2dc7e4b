#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/checkpoint/hf_tokenizer.h"
#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kTokenizerJson =
    R"({"added_tokens":[{"id":1,"content":"<s>"},{"id":7,"content":"<end>","special":true}],"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})";

TEST(HfTokenizer, SpecialTokensGetTheirIds) {
  TempDir dir;
  write_file(dir / "tokenizer.json", kTokenizerJson);
  write_file(dir / "tokenizer_config.json",
             R"({"bos_token":"<s>","eos_token":{"content":"<end>"},"chat_template":"T"})");
  auto spec = read_hf_tokenizer(dir.path());
  ASSERT_OK(spec);
  EXPECT_EQ(spec->tokenizer_json, kTokenizerJson);
  EXPECT_EQ(spec->bos_token, "<s>");
  EXPECT_EQ(spec->bos_id, 1);
  EXPECT_EQ(spec->eos_token, "<end>");
  EXPECT_EQ(spec->eos_ids, std::vector<int32_t>{7});
  EXPECT_EQ(spec->chat_template, "T");
}

TEST(HfTokenizer, ChatTemplateListAndFile) {
  TempDir dir;
  write_file(dir / "tokenizer.json", kTokenizerJson);
  write_file(dir / "tokenizer_config.json",
             R"({"chat_template":[{"name":"tool_use","template":"A"},{"name":"default","template":"B"}]})");
  auto spec = read_hf_tokenizer(dir.path());
  ASSERT_OK(spec);
  EXPECT_EQ(spec->chat_template, "B");
  write_file(dir / "chat_template.jinja", "C");
  EXPECT_EQ(read_hf_tokenizer(dir.path())->chat_template, "C");
}

TEST(HfTokenizer, NothingThereIsAnEmptySpec) {
  TempDir dir;
  auto spec = read_hf_tokenizer(dir.path());
  ASSERT_OK(spec);
  EXPECT_TRUE(spec->tokenizer_json.empty());
  write_file(dir / "tokenizer.json", "{\"added_tok");
  expect_failure(read_hf_tokenizer(dir.path()), StatusCode::kDataLoss, {"tokenizer.json"});
}

TokenizerSpec read_with(const Json& tokenizer_config) {
  TempDir dir;
  write_file(dir / "tokenizer.json", kTokenizerJson);
  write_file(dir / "tokenizer_config.json", tokenizer_config.dump());
  auto spec = read_hf_tokenizer(dir.path());
  EXPECT_TRUE(spec.ok()) << spec.status().to_string();
  return *spec;
}

TEST(HfTokenizer, SomeClassesReplaceThePostProcessorByTheirFlags) {
  for (const char* name : {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"}) {
    for (const char* fast : {"", "Fast"}) {
      SCOPED_TRACE(std::string(name) + fast);
      Json config = {{"tokenizer_class", std::string(name) + fast}};
      TokenizerSpec spec = read_with(config);
      EXPECT_TRUE(spec.replace_post_processor);
      EXPECT_TRUE(spec.add_bos);
      EXPECT_FALSE(spec.add_eos);
      config["add_bos_token"] = false;
      config["add_eos_token"] = true;
      spec = read_with(config);
      EXPECT_FALSE(spec.add_bos);
      EXPECT_TRUE(spec.add_eos);
      config["add_bos_token"] = nullptr;
      EXPECT_FALSE(read_with(config).add_bos);
    }
  }
  Json neox = {{"tokenizer_class", "GPTNeoXTokenizerFast"}};
  EXPECT_TRUE(read_with(neox).replace_post_processor);
  EXPECT_FALSE(read_with(neox).add_bos);
  neox["add_bos_token"] = true;
  EXPECT_TRUE(read_with(neox).add_bos);
}

TEST(HfTokenizer, ThePostProcessorDecidesForTheOthers) {
  for (const char* name : {"PreTrainedTokenizerFast", "TokenizersBackend", "GPT2Tokenizer", "Fast", ""})
    EXPECT_FALSE(read_with({{"tokenizer_class", name}, {"add_bos_token", true}}).replace_post_processor)
        << name;
  for (const Json& config : {Json::object(), Json{{"tokenizer_class", nullptr}, {"add_bos_token", true}}})
    EXPECT_FALSE(read_with(config).replace_post_processor) << config;
  // As transformers 5 saves the same class.
  EXPECT_FALSE(
      read_with({{"tokenizer_class", "LlamaTokenizer"}, {"backend", "tokenizers"}, {"bos_token", "<s>"}})
          .replace_post_processor);
}

TEST(HfTokenizer, AClassHasTokensOfItsOwnWhereNoFileNamesThem) {
  Json config = {{"tokenizer_class", "LlamaTokenizer"}};
  EXPECT_EQ(read_with(config).bos_token, "<s>");
  EXPECT_EQ(read_with(config).bos_id, 1);
  EXPECT_EQ(read_with(config).eos_token, "</s>");
  config["bos_token"] = nullptr;
  config["eos_token"] = {{"__type", "AddedToken"}, {"content", "<end>"}};
  EXPECT_EQ(read_with(config).bos_token, "");
  EXPECT_EQ(read_with(config).eos_ids, std::vector<int32_t>{7});
}

TEST(HfTokenizer, TheMapNamesTokensUntilTheConfigListsThem) {
  TempDir dir;
  write_file(dir / "tokenizer.json", kTokenizerJson);
  write_file(dir / "special_tokens_map.json", R"({"bos_token":{"content":"<end>"}})");
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "<end>"},
      {R"({"bos_token":"<s>"})", "<end>"},
      {R"({"bos_token":null})", "<end>"},
      {R"({"tokenizer_class":"LlamaTokenizer"})", "<end>"},
      {R"({"added_tokens_decoder":{},"bos_token":"<s>"})", "<s>"},
      {R"({"added_tokens_decoder":{}})", ""},
      {R"({"added_tokens_decoder":{},"tokenizer_class":"LlamaTokenizer"})", "<s>"},
  };
  for (const auto& [config, bos] : cases) {
    write_file(dir / "tokenizer_config.json", config);
    EXPECT_EQ(read_hf_tokenizer(dir.path())->bos_token, bos) << config;
  }
}

TEST(HfTokenizer, ConfigIsReadBack) {
  TokenizerSpec spec;
  spec.add_bos = true;
  spec.bos_token = "<s>";
  spec.eos_token = "<end>";
  spec.chat_template = "{{ x }}";
  TempDir dir;
  write_file(dir / "tokenizer.json", kTokenizerJson);
  write_file(dir / "tokenizer_config.json", tokenizer_config_json(spec));
  auto again = read_hf_tokenizer(dir.path());
  ASSERT_OK(again);
  EXPECT_EQ(again->bos_id, 1);
  EXPECT_EQ(again->eos_ids, std::vector<int32_t>{7});
  EXPECT_EQ(again->chat_template, "{{ x }}");
  EXPECT_FALSE(again->replace_post_processor);
  EXPECT_EQ(Json::parse(tokenizer_config_json(spec))["add_bos_token"], true);
  EXPECT_EQ(Json::parse(tokenizer_config_json(spec))["add_eos_token"], false);
  EXPECT_FALSE(Json::parse(tokenizer_config_json(*again)).contains("add_bos_token"));
  again->replace_post_processor = true;
  EXPECT_EQ(Json::parse(tokenizer_config_json(*again))["add_bos_token"], false);
  spec.bos_token = "\xff";
  EXPECT_EQ(Json::parse(tokenizer_config_json(spec))["bos_token"], "\uFFFD");
}

}  // namespace
}  // namespace llm_dist::checkpoint
