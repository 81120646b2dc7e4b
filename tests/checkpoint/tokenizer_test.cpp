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
  EXPECT_EQ(Json::parse(tokenizer_config_json(spec))["add_bos_token"], true);
  spec.bos_token = "\xff";
  EXPECT_EQ(Json::parse(tokenizer_config_json(spec))["bos_token"], "\uFFFD");
}

}  // namespace
}  // namespace llm_dist::checkpoint
