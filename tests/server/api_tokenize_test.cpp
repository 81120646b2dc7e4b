// /tokenize and /detokenize: what they answer, how much they take, and that they hold up nobody.
#include <future>

#include "tests/server/server_fixture.h"

namespace llm_dist::server {
namespace {

using ApiTokenize = ServerFixture;

TEST_F(ApiTokenize, TokenizeAndDetokenize) {
  Json reply = post_ok("/tokenize", {{"model", "tiny"}, {"prompt", "hi"}});
  EXPECT_EQ(reply, Json({{"count", 2}, {"max_model_len", kMaxModelLen}, {"tokens", {104, 105}}}));
  EXPECT_EQ(post_ok("/tokenize", chat("a")).at("tokens"), Json(byte_ids("user: a\nassistant: ")));
  EXPECT_EQ(post_ok("/detokenize", {{"tokens", {104, 105}}}), Json({{"prompt", "hi"}}));
  EXPECT_EQ(post("/tokenize", Json({{"prompt", "a"}, {"token", 1}})).status, 400);
  EXPECT_EQ(post("/detokenize", Json({{"tokens", {104, 258}}})).status, 400);
  // As the vocabulary spells them.
  reply = post_ok("/tokenize", {{"prompt", "a \u00e9"}, {"return_token_strs", true}});
  EXPECT_EQ(reply.at("token_strs"), Json({"a", "\u0120", "\u00c3", "\u00a9"}));
  reply = post_ok("/tokenize", {{"prompt", ""}, {"return_token_strs", true}});
  EXPECT_EQ(reply.at("token_strs"), Json::array());
  Json body = chat("a");
  body["add_generation_prompt"] = false;
  EXPECT_EQ(post_ok("/tokenize", body).at("tokens"), Json(byte_ids("user: a\n")));
}

// A conversation's template writes the BOS where the model wants one.
TEST_F(ApiTokenize, ABosStandsBeforeTextsAndBeforeNoConversation) {
  vocabulary.add_bos = true;
  start({});
  const int32_t bos = *vocabulary.bos_id;
  const std::vector<int32_t> rendered = byte_ids("user: a\nassistant: ");
  std::vector<int32_t> with_bos = rendered;
  with_bos.insert(with_bos.begin(), bos);
  EXPECT_EQ(post_ok("/tokenize", {{"prompt", "a"}}).at("tokens"), Json({bos, 'a'}));
  EXPECT_EQ(post_ok("/tokenize", {{"prompt", "a"}, {"add_special_tokens", false}}).at("tokens"), Json({'a'}));
  EXPECT_EQ(post_ok("/tokenize", chat("a")).at("tokens"), Json(rendered));
  Json asked = chat("a");
  asked["add_special_tokens"] = true;
  EXPECT_EQ(post_ok("/tokenize", asked).at("tokens"), Json(with_bos));
  post_ok("/v1/chat/completions", chat("a"));
  post_ok("/v1/completions", completion("a"));
  const auto requests = engine->requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].prompt, rendered);
  EXPECT_EQ(requests[1].prompt, (std::vector<int32_t>{bos, 'a'}));
}

// A tokenizer takes minutes and gigabytes for the largest body that a server takes.
TEST_F(ApiTokenize, TextsThatAreCountedHaveALimit) {
  constexpr size_t kMostTokens = 256 << 10;  // as for any context of at most a quarter of it
  const std::string most(4 * kMostTokens, 'a');
  EXPECT_EQ(post_ok("/tokenize", {{"prompt", most}}).at("count"), most.size());
  auto expect_refused = [&](const std::string& path, const Json& body, const std::string& param) {
    http::Response refused = post(path, body);
    EXPECT_EQ(refused.status, 400);
    const Json error = Json::parse(refused.body).at("error");
    EXPECT_EQ(error.at("code"), "context_length_exceeded");
    EXPECT_EQ(error.at("param"), param);
  };
  expect_refused("/tokenize", {{"prompt", most + "a"}}, "prompt");
  expect_refused("/tokenize", chat(most), "messages");
  expect_refused("/detokenize", {{"tokens", std::vector<int>(kMostTokens + 1, 'a')}}, "tokens");
  EXPECT_EQ(post_ok("/detokenize", {{"tokens", std::vector<int>(kMostTokens, 'a')}}).at("prompt"),
            std::string(kMostTokens, 'a'));
}

TEST_F(ApiTokenize, LongTextsHoldUpNobody) {
  start({.num_text_threads = 1});
  const Json megabyte = {{"prompt", std::string(1 << 20, 'a')}};
  for (int attempt = 0; attempt < 5; ++attempt) {  // the machine may hold up a short one, too
    auto begin = Clock::now();
    auto counting = std::async(std::launch::async, [&] {
      post_ok("/tokenize", megabyte);
      return seconds_between(begin, Clock::now());
    });
    double longest = 0;
    while (counting.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      auto asked = Clock::now();
      post_ok("/tokenize", {{"prompt", "a"}});
      longest = std::max(longest, seconds_between(asked, Clock::now()));
    }
    // Who waits for the long one waits for nearly all of it.
    if (longest < counting.get() / 2) return;
  }
  FAIL() << "short texts wait for long ones";
}

}  // namespace
}  // namespace llm_dist::server
