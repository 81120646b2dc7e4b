// Models whose embedding has more rows than their tokenizer has ids, or fewer.
#include "tests/server/server_fixture.h"

namespace llm_dist::server {
namespace {

constexpr const char* kChatPath = "/v1/chat/completions";
constexpr const char* kTextPath = "/v1/completions";

class ApiVocabulary : public ServerFixture {
 protected:
  void SetUp() override {}
  void start_with(int64_t size) {
    vocab_size = size;
    start({});
  }
  void expect_refused(const char* path, Json body, const char* fields, const std::string& param) {
    body.update(Json::parse(fields));
    SCOPED_TRACE(body.dump());
    http::Response response = post(path, body);
    EXPECT_EQ(response.status, 400) << response.body;
    const Json error = Json::parse(response.body).at("error");
    EXPECT_EQ(error.at("param"), param);
    EXPECT_NE(error.at("message").get<std::string>().find("outside the vocabulary of"), std::string::npos)
        << error;
  }
};

// The tokenizer has 258.
TEST_F(ApiVocabulary, IdsThatTheTokenizerLacksGoInAndComeOut) {
  start_with(300);
  engine->set_scripts({{'a', 299, 'b', -1}});
  Json body = {{"model", "tiny"}, {"prompt", {'x', 299}}, {"max_tokens", 9}};
  body.update(Json::parse(R"({"echo": true, "logprobs": 1, "prompt_logprobs": 1, "stop_token_ids": [298],
                              "logit_bias": {"297": 1}, "allowed_token_ids": [97, 98, 257, 298, 299]})"));
  const Json choice = post_ok(kTextPath, body).at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "xab");
  EXPECT_EQ(choice.at("logprobs").at("tokens"), Json({"x", "", "a", "", "b", "<|end|>"}));
  EXPECT_EQ(choice.at("logprobs").at("text_offset"), Json({0, 1, 1, 2, 2, 3}));
  EXPECT_EQ(choice.at("prompt_logprobs").at(1).at("299").at("decoded_token"), "");
  EXPECT_EQ(engine->requests().back().prompt, (std::vector<int32_t>{'x', 299}));

  body["return_tokens_as_token_ids"] = true;
  const Json tokens = post_ok(kTextPath, body).at("choices").at(0).at("logprobs").at("tokens");
  EXPECT_EQ(tokens.at(1), "token_id:299");
  EXPECT_EQ(stream(kTextPath, completion("x")).text(), "ab");
  Json asked = chat("x");
  asked.update(Json::parse(R"({"logprobs": true, "top_logprobs": 1, "skip_special_tokens": false})"));
  const Json content = post_ok(kChatPath, asked).at("choices").at(0).at("logprobs").at("content");
  EXPECT_EQ(content.at(1).at("bytes"), Json::array());

  EXPECT_EQ(post_ok("/detokenize", {{"tokens", {'a', 299, 'b'}}}), Json({{"prompt", "ab"}}));
  for (const auto& [fields, param] : {std::pair(R"({"prompt": [300]})", "prompt"),
                                      std::pair(R"({"stop_token_ids": [300]})", "stop_token_ids"),
                                      std::pair(R"({"logit_bias": {"300": 1}})", "logit_bias"),
                                      std::pair(R"({"allowed_token_ids": [300]})", "allowed_token_ids")})
    expect_refused(kTextPath, completion("x"), fields, param);
  EXPECT_EQ(post("/detokenize", Json({{"tokens", {300}}})).status, 400);
}

TEST_F(ApiVocabulary, IdsThatTheModelLacksDoNotReachIt) {
  start_with(200);
  for (const auto& [fields, param] : {std::pair(R"({"prompt": [200]})", "prompt"),
                                      std::pair(R"({"prompt": "a<|end|>"})", "prompt"),
                                      std::pair(R"({"stop_token_ids": [200]})", "stop_token_ids"),
                                      std::pair(R"({"logit_bias": {"200": 1}})", "logit_bias"),
                                      std::pair(R"({"allowed_token_ids": [200]})", "allowed_token_ids")})
    expect_refused(kTextPath, completion("x"), fields, param);
  expect_refused(kChatPath, chat("a<|end|>"), "{}", "messages");
  EXPECT_TRUE(engine->requests().empty());
  post_ok(kTextPath, {{"model", "tiny"}, {"prompt", {199}}});
  // They are the tokenizer's all the same.
  const Json ids = post_ok("/tokenize", {{"prompt", "<|end|>"}}).at("tokens");
  EXPECT_EQ(ids, Json({257}));
  EXPECT_EQ(post_ok("/detokenize", {{"tokens", ids}}), Json({{"prompt", "<|end|>"}}));
}

}  // namespace
}  // namespace llm_dist::server
