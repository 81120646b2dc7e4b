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

TokenizerSpec byte_level_spec() {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre_tokenizer = "smollm";
  spec.tokens = {"<|end|>", "<tool>", "a", "b", "ab", "\u0120"};
  spec.token_types = {3, 4, 1, 1, 1, 1};
  spec.merges = {"a b"};
  spec.bos_id = 0;
  spec.eos_ids = {0};
  spec.bos_token = spec.eos_token = "<|end|>";
  spec.chat_template = "{{ x }}";
  return spec;
}

TEST(TokenizerJson, HoldsVocabularyMergesAndSpecials) {
  auto texts = tokenizer_json_from_gguf(byte_level_spec());
  ASSERT_OK(texts);
  Json json = Json::parse(texts->tokenizer_json);
  EXPECT_EQ(json["model"]["vocab"]["ab"], 4);
  EXPECT_EQ(json["model"]["vocab"].size(), 6u);
  EXPECT_EQ(json["model"]["merges"], Json({"a b"}));
  ASSERT_EQ(json["added_tokens"].size(), 2u);
  EXPECT_EQ(json["added_tokens"][0]["special"], true);
  EXPECT_EQ(json["added_tokens"][1]["content"], "<tool>");
  EXPECT_EQ(json["added_tokens"][1]["special"], false);
  EXPECT_EQ(json["pre_tokenizer"]["pretokenizers"][0]["individual_digits"], true);
  EXPECT_EQ(json["post_processor"]["type"], "ByteLevel");
  EXPECT_EQ(Json::parse(texts->tokenizer_config_json)["chat_template"], "{{ x }}");
}

TEST(TokenizerJson, LlamaPutsABosAndKeepsWholeWords) {
  TokenizerSpec spec = byte_level_spec();
  spec.pre_tokenizer = "llama-bpe";
  spec.add_bos = true;
  auto texts = tokenizer_json_from_gguf(spec);
  ASSERT_OK(texts);
  Json json = Json::parse(texts->tokenizer_json);
  EXPECT_EQ(json["model"]["ignore_merges"], true);
  EXPECT_EQ(json["post_processor"]["type"], "TemplateProcessing");
  EXPECT_EQ(json["post_processor"]["special_tokens"]["<|end|>"]["ids"], Json::array({0}));
  EXPECT_EQ(json["pre_tokenizer"]["pretokenizers"][1]["use_regex"], false);
}

TEST(TokenizerJson, OthersAreNamed) {
  TokenizerSpec spec = byte_level_spec();
  spec.pre_tokenizer = "tekken";
  expect_failure(tokenizer_json_from_gguf(spec), StatusCode::kUnimplemented, {"tekken", "smollm"});
  spec.model = "llama";
  expect_failure(tokenizer_json_from_gguf(spec), StatusCode::kUnimplemented, {"llama", "gpt2"});
}

}  // namespace
}  // namespace llm_dist::checkpoint
