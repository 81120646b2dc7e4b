// What well-formed requests become.
#include "src/server/request_parser.h"

#include <gtest/gtest.h>

#include <set>

namespace llm_dist::server {
namespace {

GenerateSpec parse(Endpoint endpoint, std::string_view body) {
  GenerateSpec spec;
  auto error = parse_generate(endpoint, body, spec);
  EXPECT_FALSE(error) << error->message;
  return spec;
}

TEST(RequestParser, ChatWithEverything) {
  GenerateSpec spec = parse(Endpoint::kChat, R"({
    "model": "m", "messages": [{"role": "developer", "content": "be brief"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"}],
    "max_completion_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.25, "n": 3,
    "stop": ["x", "y"], "stop_token_ids": [1, 2], "seed": -1, "presence_penalty": 1, "frequency_penalty": -1,
    "repetition_penalty": 1.5, "logprobs": true, "top_logprobs": 4, "ignore_eos": true, "min_tokens": 2,
    "include_stop_str_in_output": true, "skip_special_tokens": false, "stream": true,
    "stream_options": {"include_usage": true}, "priority": -3, "chat_template_kwargs": {"k": [1]},
    "logit_bias": {"5": 1.5}, "allowed_token_ids": [3, 4], "bad_words": ["x"], "no_repeat_ngram_size": 2,
    "return_tokens_as_token_ids": true})");
  EXPECT_EQ(spec.chat.messages_json,
            R"([{"content":"be brief","role":"system"},{"content":"a\nb","name":"ann","role":"user"}])");
  EXPECT_EQ(spec.chat.kwargs_json, R"({"k":[1]})");
  EXPECT_TRUE(spec.chat.add_generation_prompt);
  EXPECT_EQ(spec.max_tokens, 7);
  EXPECT_EQ(spec.temperature, 0);
  EXPECT_EQ(spec.top_k, -1);
  EXPECT_EQ(spec.n, 3);
  EXPECT_EQ(spec.seed, ~uint64_t{0});
  EXPECT_EQ(spec.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(spec.stop_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(spec.num_logprobs, 4);
  ASSERT_EQ(spec.logit_bias.size(), 1u);
  EXPECT_EQ(spec.logit_bias[0].token, 5);
  EXPECT_EQ(spec.logit_bias[0].bias, 1.5f);
  EXPECT_EQ(spec.allowed_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(spec.bad_words, (std::vector<std::string>{"x"}));
  EXPECT_EQ(spec.no_repeat_ngram_size, 2);
  EXPECT_EQ(spec.priority, -3);
  EXPECT_TRUE(spec.ignore_eos && spec.include_stop && spec.stream && spec.include_usage);
  EXPECT_FALSE(spec.skip_special_tokens);
  EXPECT_EQ(spec.token_names, TokenNames::kIds);
}

TEST(RequestParser, ContinuingTheLastMessageTurnsTheGenerationPromptOff) {
  GenerateSpec spec = parse(Endpoint::kChat, R"({"model": "m", "continue_final_message": true,
    "messages": [{"role": "assistant", "content": "so"}]})");
  EXPECT_TRUE(spec.chat.continue_final_message);
  EXPECT_FALSE(spec.chat.add_generation_prompt);
}

TEST(RequestParser, LogprobsOfNoneAndOfTheTokenAlone) {
  EXPECT_EQ(parse(Endpoint::kCompletions, R"({"model": "m", "prompt": "a"})").num_logprobs, -1);
  EXPECT_EQ(parse(Endpoint::kCompletions, R"({"model": "m", "prompt": "a", "logprobs": 0})").num_logprobs, 0);
  EXPECT_EQ(parse(Endpoint::kChat,
                  R"({"model": "m", "messages": [{"role": "user", "content": ""}], "logprobs": true})")
                .num_logprobs,
            0);
}

TEST(RequestParser, BestOfCountsSequences) {
  GenerateSpec spec = parse(Endpoint::kCompletions,
                            R"({"model": "m", "prompt": "a", "n": 2, "best_of": 5, "prompt_logprobs": 3})");
  EXPECT_EQ(spec.num_sequences(), 5);
  EXPECT_EQ(spec.num_prompt_logprobs, 3);
  EXPECT_EQ(parse(Endpoint::kCompletions, R"({"model": "m", "prompt": "a", "n": 2})").num_sequences(), 2);
}

TEST(RequestParser, TheFourShapesOfAPrompt) {
  auto prompts = [](const std::string& prompt) {
    return parse(Endpoint::kCompletions, R"({"model": "m", "prompt": )" + prompt + "}").prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(prompts(R"("a")"), (std::vector<PromptInput>{"a"}));
  EXPECT_EQ(prompts(R"(["a", ""])"), (std::vector<PromptInput>{"a", ""}));
  EXPECT_EQ(prompts("[1, 2]"), (std::vector<PromptInput>{Ids{1, 2}}));
  EXPECT_EQ(prompts("[[1], [2, 3]]"), (std::vector<PromptInput>{Ids{1}, Ids{2, 3}}));
}

TEST(RequestSchema, EveryFieldStandsOncePerEndpointAndKnowsItself) {
  std::set<std::pair<std::string_view, int>> seen;
  for (const Field& field : request_fields()) {
    for (int endpoint : {1, 2, 4, 8}) {
      if ((field.endpoints & endpoint) == 0) continue;
      EXPECT_TRUE(seen.emplace(field.name, endpoint).second) << field.name;
      EXPECT_EQ(find_field(static_cast<Endpoint>(endpoint), field.name), &field);
    }
  }
  EXPECT_EQ(hint_for(Endpoint::kChat, "temprature"), "; did you mean 'temperature'?");
  EXPECT_EQ(hint_for(Endpoint::kChat, "prompt"), ", but /v1/completions has it");
  EXPECT_EQ(hint_for(Endpoint::kTokenize, "temperature"), ", but /v1/completions has it");
  EXPECT_EQ(hint_for(Endpoint::kChat, "guided_json"), "");
}

}  // namespace
}  // namespace llm_dist::server
