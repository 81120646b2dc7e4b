#include "launch/text_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "src/checkpoint/hf_tokenizer.h"

namespace llm_dist::launch {
namespace {

class TextModelTest : public testing::Test {
 protected:
  TextModelTest() {
    std::filesystem::create_directories(model_);
    std::filesystem::create_directories(other_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  // Tokens "a" and "b", and the end token `end` with that id.
  void write_tokenizer(const std::string& folder, const std::string& end, int id) {
    write(folder + "/tokenizer.json",
          R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":)" + std::to_string(id) +
              R"(,"content":")" + end +
              R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],)"
              R"("normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,)"
              R"("model":{"type":"BPE","vocab":{"a":0,"b":1,")" +
              end + R"(":)" + std::to_string(id) + R"(},"merges":[]}})");
    write(folder + "/tokenizer_config.json", R"({"eos_token":")" + end + R"("})");
  }
  Result<TextModel> made(const std::string& tokenizer) {
    write(
        model_ + "/config.json",
        R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":32,"num_hidden_layers":1,)"
        R"("num_attention_heads":2,"num_key_value_heads":1,"intermediate_size":48,"vocab_size":20,)"
        R"("max_position_embeddings":64,"eos_token_id":2})");
    ASSIGN_OR_RETURN(auto checkpoint, checkpoint::Checkpoint::open(model_, checkpoint::LoadFormat::kDummy));
    ModelFlags flags;
    flags.tokenizer = tokenizer;
    return make_text_model(*checkpoint, flags);
  }

  std::string folder_ = testing::TempDir() + "/llm-dist-text-model-" + std::to_string(getpid());
  std::string model_ = folder_ + "/model";
  std::string other_ = folder_ + "/other";
};

TEST_F(TextModelTest, AnotherTokenizersEndTokenEndsToo) {
  write_tokenizer(model_, "</s>", 2);
  write_tokenizer(other_, "<|im_end|>", 9);
  auto own = made("");
  ASSERT_TRUE(own.ok()) << own.status().to_string();
  EXPECT_EQ(own->eos_ids, std::vector<int32_t>{2});
  auto other = made(other_);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_EQ(other->eos_ids, (std::vector<int32_t>{2, 9}));
}

TEST_F(TextModelTest, AnEndTokenThatTheModelDoesNotHaveIsLeftOut) {
  write_tokenizer(other_, "<|im_end|>", 20);
  auto other = made(other_);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_EQ(other->eos_ids, std::vector<int32_t>{2});
}

TEST_F(TextModelTest, ABosByFlagIsPutOnceAndOutlivesAConversion) {
  write_tokenizer(model_, "<s>", 2);
  for (const bool add_bos : {true, false}) {
    write(
        model_ + "/tokenizer_config.json",
        std::string(R"({"tokenizer_class":"LlamaTokenizer","bos_token":{"content":"<s>"},"add_bos_token":)") +
            (add_bos ? "true}" : "false}"));
    const std::vector<int32_t> expected = add_bos ? std::vector<int32_t>{2, 0} : std::vector<int32_t>{0};
    auto own = made("");
    ASSERT_TRUE(own.ok()) << own.status().to_string();
    EXPECT_EQ(*own->tokenizer->encode("a"), expected);
    EXPECT_EQ(*own->tokenizer->encode("a", {.add_special_tokens = false}), std::vector<int32_t>{0});

    auto spec = checkpoint::read_tokenizer(model_);
    ASSERT_TRUE(spec.ok()) << spec.status().to_string();
    write(other_ + "/tokenizer.json", *tokenizer_json_of(*spec));
    write(other_ + "/tokenizer_config.json", checkpoint::tokenizer_config_json(*spec));
    auto converted = made(other_);
    ASSERT_TRUE(converted.ok()) << converted.status().to_string();
    EXPECT_EQ(*converted->tokenizer->encode("a"), expected);
  }
}

TEST_F(TextModelTest, ATokenizerJsonThatDecidesIsConvertedAsItIs) {
  write_tokenizer(model_, "<s>", 2);
  auto spec = checkpoint::read_tokenizer(model_);
  ASSERT_TRUE(spec.ok()) << spec.status().to_string();
  EXPECT_EQ(*tokenizer_json_of(*spec), spec->tokenizer_json);
  EXPECT_EQ(*tokenizer_json_of(TokenizerSpec()), "");
}

}  // namespace
}  // namespace llm_dist::launch
