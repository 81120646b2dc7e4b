// Every way to ask wrongly, and what the client is told.
#include <cstdio>
#include <cstdlib>

#include "tests/server/server_fixture.h"

namespace llm_dist::server {
namespace {

constexpr const char* kChatPath = "/v1/chat/completions";
constexpr const char* kTextPath = "/v1/completions";

struct BadRequest {
  const char* path;
  const char* fields;  // merged into a valid body: JSON object; null removes nothing, it is sent
  const char* param;
  const char* message_part;
  const char* code = nullptr;
  int status = 400;
};

const BadRequest kBadRequests[] = {
    // Unknown names.
    {kChatPath, R"({"temprature": 1})", "temprature", "'temperature'", "unknown_parameter"},
    {kChatPath, R"({"max_token": 1})", "max_token", "'max_tokens'", "unknown_parameter"},
    {kTextPath, R"({"topp": 1})", "topp", "'top_p'", "unknown_parameter"},
    {kTextPath, R"({"messages": []})", "messages", "unknown field", "unknown_parameter"},
    {kTextPath,
     R"({"max_completion_tokens": 3})",
     "max_completion_tokens",
     "/v1/chat/completions has it",
     "unknown_parameter"},
    {kChatPath, R"({"prompt": "x"})", "prompt", "unknown field", "unknown_parameter"},
    {kChatPath,
     R"({"stream": true, "stream_options": {"usage": true}})",
     "stream_options.usage",
     "include_usage"},
    // Types.
    {kChatPath, R"({"model": 3})", "model", "must be a string"},
    {kChatPath, R"({"temperature": "hot"})", "temperature", "must be a number, not string"},
    {kChatPath, R"({"max_tokens": 1.5})", "max_tokens", "must be an integer"},
    {kChatPath, R"({"stream": 1})", "stream", "must be a boolean"},
    {kChatPath, R"({"messages": "hi"})", "messages", "must be an array"},
    {kChatPath, R"({"logprobs": 3})", "logprobs", "must be a boolean"},
    {kTextPath, R"({"logprobs": true})", "logprobs", "must be an integer"},
    {kChatPath, R"({"stop": 5})", "stop", "must be a string or an array"},
    {kChatPath, R"({"stop": [5]})", "stop", "array of strings"},
    {kChatPath, R"({"seed": "x"})", "seed", "must be an integer"},
    {kChatPath, R"({"chat_template_kwargs": []})", "chat_template_kwargs", "must be an object"},
    {kTextPath, R"({"prompt": {"a": 1}})", "prompt", "must be a string or an array"},
    {kTextPath, R"({"prompt": [1, "a"]})", "prompt", "token ids"},
    {kTextPath, R"({"prompt": ["a", 1]})", "prompt", "array of strings"},
    {kTextPath, R"({"prompt": [true]})", "prompt", "array of strings"},
    {kTextPath, R"({"prompt": [[1], ["a"]]})", "prompt[1]", "token ids"},
    {kTextPath, R"({"prompt": [-1]})", "prompt", "token ids"},
    {kChatPath, R"({"stop_token_ids": ["a"]})", "stop_token_ids", "token ids"},
    // Ranges.
    {kChatPath, R"({"temperature": -0.1})", "temperature", "between 0 and 2"},
    {kChatPath, R"({"temperature": 2.5})", "temperature", "between 0 and 2, not 2.5"},
    {kChatPath, R"({"top_p": 0})", "top_p", "between"},
    {kChatPath, R"({"top_p": 1.01})", "top_p", "between"},
    {kChatPath, R"({"top_k": -2})", "top_k", "between"},
    {kChatPath, R"({"min_p": 2})", "min_p", "between 0 and 1"},
    {kChatPath, R"({"n": 0})", "n", "between"},
    {kChatPath, R"({"n": 129})", "n", "between"},
    {kChatPath, R"({"max_tokens": 0})", "max_tokens", "between 1"},
    {kChatPath, R"({"presence_penalty": 3})", "presence_penalty", "between -2 and 2"},
    {kChatPath, R"({"frequency_penalty": -3})", "frequency_penalty", "between -2 and 2"},
    {kChatPath, R"({"repetition_penalty": 0})", "repetition_penalty", "between"},
    {kChatPath, R"({"logprobs": true, "top_logprobs": 21})", "top_logprobs", "between 0 and 20"},
    {kChatPath, R"({"seed": 1e30})", "seed", "must be an integer"},
    {kChatPath,
     R"({"stop": ["1","2","3","4","5","6","7","8","9","0","a","b","c","d","e","f","g"]})",
     "stop",
     "16"},
    {kChatPath, R"({"stop": ""})", "stop", "empty"},
    {kTextPath, R"({"stop_token_ids": [9999]})", "stop_token_ids", "vocabulary"},
    {kTextPath, R"({"prompt": [258]})", "prompt", "outside the vocabulary of 258"},
    {kTextPath, R"({"prompt": ["a", "b"], "n": 100})", "n", "200 choices"},
    {kChatPath, R"({"logit_bias": {"50256": -100}})", "logit_bias", "outside the vocabulary of 258"},
    {kChatPath, R"({"logit_bias": {"5": -100.5}})", "logit_bias", "token 5 must be a number between -100"},
    {kTextPath, R"({"logit_bias": {"5": true}})", "logit_bias", "must be a number"},
    {kTextPath, R"({"logit_bias": {"05": 1}})", "logit_bias", "'05' is none"},
    {kTextPath, R"({"logit_bias": {"x": 1}})", "logit_bias", "by token id"},
    {kTextPath, R"({"logit_bias": {"-1": 1}})", "logit_bias", "by token id"},
    {kTextPath, R"({"logit_bias": [1]})", "logit_bias", "must be an object"},
    {kTextPath, R"({"allowed_token_ids": []})", "allowed_token_ids", "at least one"},
    {kTextPath, R"({"allowed_token_ids": [258]})", "allowed_token_ids", "outside the vocabulary"},
    {kTextPath, R"({"allowed_token_ids": [true]})", "allowed_token_ids", "token ids"},
    {kTextPath, R"({"bad_words": "x"})", "bad_words", "must be an array"},
    {kTextPath, R"({"bad_words": [""]})", "bad_words", "not empty"},
    {kTextPath, R"({"bad_words": [5]})", "bad_words", "must hold strings"},
    {kTextPath, R"({"no_repeat_ngram_size": -1})", "no_repeat_ngram_size", "between 0"},
    {kTextPath, R"({"no_repeat_ngram_size": 65})", "no_repeat_ngram_size", "between 0 and 64"},
    // Combinations.
    {kChatPath, R"({"top_logprobs": 2})", "top_logprobs", "needs 'logprobs'"},
    {kChatPath, R"({"stream_options": {"include_usage": true}})", "stream_options", "needs 'stream'"},
    {kChatPath, R"({"min_tokens": 9, "max_tokens": 8})", "min_tokens", "more than"},
    {kTextPath, R"({"max_tokens": 0})", "max_tokens", "needs 'echo'"},
    {kTextPath, R"({"best_of": 2, "n": 3})", "best_of", "less than 'n'"},
    {kTextPath, R"({"best_of": 2, "stream": true})", "best_of", "cannot be streamed"},
    {kTextPath, R"({"best_of": 129})", "best_of", "between 1 and 128"},
    {kTextPath, R"({"prompt": ["a", "b"], "best_of": 100})", "best_of", "200 choices"},
    {kChatPath, R"({"best_of": 2})", "best_of", "unknown field"},
    {kTextPath, R"({"prompt_logprobs": 1, "stream": true})", "prompt_logprobs", "cannot be streamed"},
    {kChatPath, R"({"prompt_logprobs": 21})", "prompt_logprobs", "between 0 and 20"},
    {kChatPath,
     R"({"add_generation_prompt": true, "continue_final_message": true})",
     "continue_final_message",
     "both"},
    {kTextPath, R"({"prompt": ""})", "prompt", "no tokens"},
    {kTextPath, R"({"prompt": []})", "prompt", "empty"},
    {kTextPath, R"({"prompt": null})", "prompt", "required"},
    {kChatPath, R"({"model": null})", "model", "required"},
    // Messages.
    {kChatPath, R"({"messages": []})", "messages", "at least one"},
    {kChatPath, R"({"messages": ["hi"]})", "messages[0]", "must be an object"},
    {kChatPath, R"({"messages": [{"content": "x"}]})", "messages[0].role", "must be a string"},
    {kChatPath, R"({"messages": [{"role": "robot", "content": "x"}]})", "messages[0].role", "not 'robot'"},
    {kChatPath, R"({"messages": [{"role": "tool", "content": "x"}]})", "messages[0].role", "not served"},
    {kChatPath, R"({"messages": [{"role": "user"}]})", "messages[0].content", "required"},
    {kChatPath, R"({"messages": [{"role": "user", "content": 3}]})", "messages[0].content", "text parts"},
    {kChatPath,
     R"({"messages": [{"role": "user", "content": "x", "colour": 1}]})",
     "messages[0].colour",
     "unknown"},
    {kChatPath,
     R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})",
     "messages[0].content[0]",
     "'image_url' are not served",
     "unsupported_parameter"},
    {kChatPath,
     R"({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]})",
     "messages[0].tool_calls",
     "not served"},
    // Known, not served.
    {kChatPath, R"({"tools": [{"type": "function"}]})", "tools", "not served", "unsupported_parameter"},
    {kChatPath, R"({"tool_choice": "required"})", "tool_choice", "not served", "unsupported_parameter"},
    {kChatPath, R"({"response_format": {"type": "json_object"}})", "response_format", "not served"},
    {kTextPath, R"({"suffix": "end"})", "suffix", "not served"},
    {kTextPath, R"({"structured_outputs": {"regex": "a+"}})", "structured_outputs", "not served"},
    {kTextPath, R"({"use_beam_search": true})", "use_beam_search", "not served"},
    // Models.
    {kChatPath, R"({"model": "gpt-9"})", "model", "'gpt-9' does not exist", "model_not_found", 404},
    {kTextPath, R"({"model": ""})", "model", "served here: 'tiny', 'owner/tiny'", "model_not_found", 404},
};

class ApiErrors : public ServerFixture {};

TEST_F(ApiErrors, EveryBadRequestNamesItsFieldInOpenAiShape) {
  for (const BadRequest& bad : kBadRequests) {
    SCOPED_TRACE(std::string(bad.path) + " " + bad.fields);
    Json body = bad.path == std::string(kChatPath) ? chat("hi") : completion("hi");
    body.update(Json::parse(bad.fields));
    http::Response response = post(bad.path, body);
    EXPECT_EQ(response.status, bad.status) << response.body;
    Json error = Json::parse(response.body).at("error");
    EXPECT_EQ(error.size(), 4u);
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    EXPECT_EQ(error.at("param"), bad.param);
    EXPECT_NE(error.at("message").get<std::string>().find(bad.message_part), std::string::npos) << error;
    if (bad.code != nullptr) {
      EXPECT_EQ(error.at("code"), bad.code);
    }
  }
  EXPECT_TRUE(engine->requests().empty());
}

TEST_F(ApiErrors, NeutralValuesOfUnservedFieldsAreAccepted) {
  Json body = chat("hi");
  body.update(
      Json::parse(R"({"tools": [], "tool_choice": "none", "parallel_tool_calls": true, "logit_bias": {},
      "response_format": {"type": "text"}, "store": false, "functions": null, "length_penalty": 1.0,
      "use_beam_search": false, "structured_outputs": null, "temperature": null, "stop": null, "user": "me",
      "metadata": {"a": "b"}, "service_tier": "auto"})"));
  post_ok(kChatPath, body);
}

TEST_F(ApiErrors, BodiesThatAreNoRequest) {
  for (const char* body : {"", "{", "[]", "3", "{\"model\": \"tiny\", }", "{\"model\": \"\xff\"}"}) {
    http::Response response = post(kChatPath, std::string(body));
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_TRUE(Json::parse(response.body).at("error").at("param").is_null());
  }
  std::string deep = R"({"model": "tiny", "chat_template_kwargs": {"a": )" + std::string(100000, '[') +
                     std::string(100000, ']') + "}}";
  EXPECT_EQ(post(kChatPath, deep).status, 400);
}

TEST_F(ApiErrors, LongPromptsAreRefusedWithTheNumbers) {
  http::Response response = post(kTextPath, completion(std::string(kMaxModelLen, 'a')));
  EXPECT_EQ(response.status, 400);
  Json error = Json::parse(response.body).at("error");
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
  EXPECT_NE(error.at("message").get<std::string>().find("512"), std::string::npos);

  Json body = completion(std::string(500, 'a'));  // 100 tokens of output do not fit
  error = Json::parse(post(kTextPath, body).body).at("error");
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
  EXPECT_NE(
      error.at("message").get<std::string>().find("600 tokens (500 in the prompt, 100 in the completion)"),
      std::string::npos)
      << error;
}

TEST_F(ApiErrors, MoreLogprobsOfPromptsThanAReplyTakesAreRefusedWithTheNumbers) {
  max_model_len = 200'000;
  start({});
  auto expect_refused = [&](const char* path, Json body, const char* fields, const std::string& param) {
    body.update(Json::parse(fields));
    http::Response response = post(path, body);
    EXPECT_EQ(response.status, 400) << fields;
    const Json error = Json::parse(response.body).at("error");
    EXPECT_EQ(error.at("param"), param) << error;
    EXPECT_NE(error.at("message").get<std::string>().find("a reply takes 4194304"), std::string::npos)
        << error;
  };
  const std::string text(1600, 'a');
  expect_refused(kTextPath, completion(text), R"({"prompt_logprobs": 20, "n": 128})", "prompt_logprobs");
  expect_refused(
      kTextPath, completion(text), R"({"echo": true, "logprobs": 20, "best_of": 128})", "logprobs");
  Json several = completion("");
  several["prompt"] = std::vector<std::string>(100, std::string(2000, 'a'));
  expect_refused(kTextPath, several, R"({"prompt_logprobs": 20})", "prompt_logprobs");
  expect_refused(kChatPath, chat(std::string(199'900, 'a')), R"({"prompt_logprobs": 20})", "prompt_logprobs");
  EXPECT_TRUE(engine->requests().empty());
  // A chat's stand there once.
  Json once = chat(text);
  once.update(Json::parse(R"({"prompt_logprobs": 20, "n": 128, "max_tokens": 1})"));
  post_ok(kChatPath, once);
}

TEST_F(ApiErrors, APerplexityOfALongContextIsServed) {
  constexpr size_t kTokens = 128 << 10;
  max_model_len = kTokens + 1;
  start({});
  for (const char* fields : {R"({"prompt_logprobs": 5})", R"({"echo": true, "logprobs": 5})"}) {
    Json body = completion(std::string(kTokens, 'a'));
    body["max_tokens"] = 1;
    body.update(Json::parse(fields));
    const http::Response response = post(kTextPath, body);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_GT(response.body.size(), 10 * 6 * kTokens);
  }
}

// Encoding these would take seconds.
TEST_F(ApiErrors, TextsThatCannotFitAreRefusedUnread) {
  const std::string huge(1'000'000, 'a');
  for (const auto& [path, body] :
       {std::pair(kTextPath, completion(huge)), std::pair(kChatPath, chat(huge))}) {
    http::Response response = post(path, body);
    EXPECT_EQ(response.status, 400);
    Json error = Json::parse(response.body).at("error");
    EXPECT_EQ(error.at("code"), "context_length_exceeded");
    EXPECT_EQ(error.at("param"), path == kTextPath ? "prompt" : "messages");
    EXPECT_NE(error.at("message").get<std::string>().find("at least"), std::string::npos) << error;
  }
  Json body = completion("hi");
  body["bad_words"] = {"x", huge};
  Json error = Json::parse(post(kTextPath, body).body).at("error");
  EXPECT_EQ(error.at("param"), "bad_words");
  EXPECT_NE(error.at("message").get<std::string>().find("at least"), std::string::npos) << error;
  // Leading spaces of a bad word are not looked for.
  body["bad_words"] = {std::string(1'000'000, ' ') + "x"};
  post_ok(kTextPath, body);
}

TEST_F(ApiErrors, TheLongestTextThatFitsIsServed) {
  std::string text;
  for (int64_t i = 0; i + 1 < kMaxModelLen; ++i) text += "<|end|>";
  Json body = completion(text);
  body["max_tokens"] = 1;
  post_ok(kTextPath, body);
  body["prompt"] = text + "<|end|>";
  EXPECT_EQ(Json::parse(post(kTextPath, body).body).at("error").at("code"), "context_length_exceeded");
}

TEST_F(ApiErrors, TooManyJsonValuesAreRefusedAndTheNextChatIsServed) {
  std::string values = "[]";
  for (int i = 0; i < 300'000; ++i) values += ",[]";
  Json body = chat("hi");
  body["chat_template_kwargs"] = Json::parse(R"({"a":[)" + values + "]}");
  for (int i = 0; i < 5; ++i) {
    http::Response response = post(kChatPath, body);
    EXPECT_EQ(response.status, 400);
    Json error = Json::parse(response.body).at("error");
    EXPECT_EQ(error.at("param"), "messages");
    EXPECT_NE(error.at("message").get<std::string>().find("300002 in chat_template_kwargs"),
              std::string::npos)
        << error;
  }
  post_ok(kChatPath, chat("hi"));
  EXPECT_EQ(get("/readyz").status, 200);
}

// As templates of models that think do it: of 7 bytes a split makes a value of 24 and more.
TEST_F(ApiErrors, ConversationsTooLargeToRenderAreRefusedAndTheNextChatIsServed) {
  template_source =
      "{% for message in messages %}{{ "
      "message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] "
      "}}{% endfor %}";
  start({});
  const auto thinking = [](size_t bytes) {
    std::string content;
    while (content.size() < bytes) content += "<think>";
    return chat(content + "x");
  };
  for (int i = 0; i < 5; ++i) {
    http::Response response = post(kChatPath, thinking(32'000'000));
    EXPECT_EQ(response.status, 400);
    Json error = Json::parse(response.body).at("error");
    EXPECT_EQ(error.at("code"), "context_length_exceeded");
    EXPECT_EQ(error.at("param"), "messages");
    EXPECT_NE(error.at("message").get<std::string>().find("the most is 1048576"), std::string::npos) << error;
  }
  EXPECT_EQ(get("/readyz").status, 200);
  post_ok(kChatPath, thinking(1'048'000));
  Json body = chat("hi");
  body["chat_template_kwargs"] = {{"a", std::string(1 << 20, 'a')}};
  EXPECT_EQ(Json::parse(post("/tokenize", body).body).at("error").at("code"), "context_length_exceeded");
}

TEST_F(ApiErrors, WhileManyRendersThatWereGivenUpRunChatsAreToldToComeAgain) {
  auto slow = text::ChatTemplate::create(
      "{% set x = 'ab' * 500000 %}{% for i in range(200) %}{% set y = x | upper | lower %}{% endfor %}",
      "",
      "");
  while (slow->render("[]", {.timeout = std::chrono::milliseconds(20)}).status().code() ==
         StatusCode::kDeadlineExceeded) {
  }
  http::Response response = post(kChatPath, chat("hi"));
  EXPECT_EQ(response.status, 503) << response.body;
  EXPECT_NE(response.headers.find("Retry-After"), nullptr);
  EXPECT_EQ(Json::parse(response.body).at("error").at("code"), "unavailable");
  EXPECT_EQ(get("/readyz").status, 200);
  EXPECT_TRUE(eventually([&] { return post(kChatPath, chat("hi")).status == 200; }));
}

TEST_F(ApiErrors, ATemplateThatTakesTooLongIsNoMistakeOfTheClient) {
  template_source =
      "{% set x = 'ab' * 2000000 %}{% for i in range(6000) %}{% set y = x | upper | lower %}{% endfor %}";
  start({});
  http::Response response = post(kChatPath, chat("hi"));
  EXPECT_EQ(response.status, 503) << response.body;
  EXPECT_NE(response.headers.find("Retry-After"), nullptr);
  EXPECT_NE(Json::parse(response.body).at("error").at("message").get<std::string>().find("5000 ms"),
            std::string::npos);
}

TEST_F(ApiErrors, ChatIsUnavailableOnceNothingIsRendered) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // In a process of its own: nothing undoes it.
  EXPECT_EXIT(
      {
        auto hostile = text::ChatTemplate::create("{{ 'x' | indent(99999999999999) }}", "", "");
        while (text::ChatTemplate::can_render()) EXPECT_FALSE(hostile->render("[]").ok());
        http::Response response = post(kChatPath, chat("hi"));
        EXPECT_EQ(response.status, 503) << response.body;
        EXPECT_NE(response.headers.find("Retry-After"), nullptr);
        Json error = Json::parse(response.body).at("error");
        EXPECT_EQ(error.at("code"), "unavailable");
        EXPECT_EQ(error.at("type"), "server_error");
        EXPECT_TRUE(error.at("param").is_null());
        EXPECT_EQ(get("/readyz").status, 503);
        EXPECT_EQ(get("/livez").status, 200);
        post_ok(kTextPath, completion("hi"));
        std::fflush(stdout);
        std::_Exit(HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0),
      "");
}

TEST_F(ApiErrors, PathsAndMethods) {
  EXPECT_EQ(get("/v1/model").status, 404);
  EXPECT_EQ(get(kChatPath).status, 405);
  EXPECT_EQ(Json::parse(get("/v1/model").body).at("error").at("code"), "unknown_url");
  EXPECT_EQ(get("/v1/models/other").status, 404);
  EXPECT_EQ(Json::parse(get("/v1/models/other").body).at("error").at("code"), "model_not_found");
}

TEST_F(ApiErrors, AFullQueueIs503WithRetryAfter) {
  engine->refuse(resource_exhausted("the queue is full: 8 requests wait"));
  http::Response response = post(kChatPath, chat("hi"));
  EXPECT_EQ(response.status, 503);
  ASSERT_NE(response.headers.find("Retry-After"), nullptr);
  EXPECT_EQ(Json::parse(response.body).at("error").at("code"), "queue_full");
  engine->refuse(invalid_argument("it needs 99 blocks, there are 3"));
  EXPECT_EQ(post(kChatPath, chat("hi")).status, 400);
}

TEST_F(ApiErrors, ChatWithoutATemplateSaysWhatToDo) {
  start_loading({});
  attach(false);
  http::Response response = post(kChatPath, chat("hi"));
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("--chat-template"), std::string::npos);
  post_ok(kTextPath, completion("hi"));
}

TEST_F(ApiErrors, LargeBodiesAre413) {
  start({.max_body_bytes = 1000});
  http::Response response = post(kChatPath, chat(std::string(2000, 'a')));
  EXPECT_EQ(response.status, 413);
  EXPECT_TRUE(Json::parse(response.body).contains("error"));
}

}  // namespace
}  // namespace llm_dist::server
