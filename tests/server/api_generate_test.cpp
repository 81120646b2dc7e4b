// Chats and completions that go well.
#include <future>
#include <set>

#include "tests/server/server_fixture.h"

namespace llm_dist::server {
namespace {

constexpr const char* kChatPath = "/v1/chat/completions";
constexpr const char* kTextPath = "/v1/completions";

class ApiGenerate : public ServerFixture {};

TEST_F(ApiGenerate, AChatReply) {
  engine->set_scripts({script("Paris.")});
  Json reply = post_ok(kChatPath, chat("capital?"));
  EXPECT_EQ(reply.at("object"), "chat.completion");
  EXPECT_EQ(reply.at("id").get<std::string>().rfind("chatcmpl-", 0), 0u);
  EXPECT_EQ(reply.at("model"), "tiny");
  EXPECT_GT(reply.at("created").get<int64_t>(), 1600000000);
  EXPECT_EQ(reply.at("system_fingerprint").get<std::string>().rfind("fp_", 0), 0u);
  const Json& choice = reply.at("choices").at(0);
  EXPECT_EQ(choice.at("message"),
            Json::parse(R"({"role": "assistant", "content": "Paris.", "refusal": null})"));
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_TRUE(choice.at("logprobs").is_null());
  int64_t prompt_tokens = static_cast<int64_t>(std::string("user: capital?\nassistant: ").size());
  EXPECT_EQ(reply.at("usage"),
            Json({{"prompt_tokens", prompt_tokens},
                  {"completion_tokens", 7},
                  {"total_tokens", prompt_tokens + 7},
                  {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
}

TEST_F(ApiGenerate, AStreamSaysTheSameAsAReply) {
  engine->set_scripts({script("h\u00e9llo \U0001F600 END of it")});
  for (const char* path : {kChatPath, kTextPath}) {
    Json body = path == std::string(kChatPath) ? chat("x") : completion("x");
    body["stop"] = {"END"};
    Json reply = post_ok(path, body);
    const Json& choice = reply.at("choices").at(0);
    std::string whole = choice.contains("text") ? choice.at("text").get<std::string>()
                                                : choice.at("message").at("content").get<std::string>();
    Stream streamed = stream(path, body);
    EXPECT_EQ(streamed.status, 200);
    EXPECT_EQ(whole, "h\u00e9llo \U0001F600 ");
    EXPECT_EQ(streamed.text(), whole);
    EXPECT_EQ(streamed.finish_reason(), "stop");
    EXPECT_TRUE(streamed.done);
    std::set<std::string> ids;
    for (const Json& chunk : streamed.chunks) {
      ids.insert(chunk.at("id"));
      EXPECT_FALSE(chunk.contains("usage"));
    }
    EXPECT_EQ(ids.size(), 1u);
  }
  EXPECT_TRUE(eventually([&] { return engine->num_running() == 0; }));
}

TEST_F(ApiGenerate, ChunksOfAChatOpenWithTheRoleAndEndWithUsage) {
  engine->set_scripts({script("ok")});
  Json body = chat("x");
  body["stream_options"] = {{"include_usage", true}};
  Stream streamed = stream(kChatPath, body);
  ASSERT_EQ(streamed.chunks.size(), 5u);
  EXPECT_EQ(streamed.chunks[0].at("object"), "chat.completion.chunk");
  EXPECT_EQ(streamed.chunks[0].at("choices").at(0).at("delta"),
            Json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(streamed.chunks[1].at("choices").at(0).at("delta"), Json({{"content", "o"}}));
  EXPECT_TRUE(streamed.chunks[1].at("usage").is_null());
  EXPECT_EQ(streamed.chunks[3].at("choices").at(0).at("delta"), Json::object());
  EXPECT_EQ(streamed.chunks[3].at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(streamed.chunks[4].at("choices"), Json::array());
  EXPECT_EQ(streamed.chunks[4].at("usage").at("completion_tokens"), 3);
}

TEST_F(ApiGenerate, ThreeChoicesEachWithTheirOwnText) {
  engine->set_scripts({script("one"), script("zwei"), script("tres")});
  Json body = chat("x");
  body["n"] = 3;
  body["seed"] = 5;
  Json reply = post_ok(kChatPath, body);
  ASSERT_EQ(reply.at("choices").size(), 3u);
  EXPECT_EQ(reply.at("choices").at(1).at("message").at("content"), "zwei");
  EXPECT_EQ(reply.at("choices").at(2).at("index"), 2);
  EXPECT_EQ(reply.at("usage").at("completion_tokens"), 4 + 5 + 5);
  Stream streamed = stream(kChatPath, body);
  EXPECT_EQ(streamed.text(0), "one");
  EXPECT_EQ(streamed.text(1), "zwei");
  EXPECT_EQ(streamed.text(2), "tres");
  auto requests = engine->requests();
  ASSERT_EQ(requests.size(), 6u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(requests[i].sampling.choice, i);
    EXPECT_EQ(requests[i].sampling.seed, 5u);
    EXPECT_EQ(requests[i].joins, i > 0);
  }
}

TEST_F(ApiGenerate, SeveralPromptsOfAllShapes) {
  engine->set_scripts({script("A"), script("B")});
  Json body = completion("");
  body["prompt"] = {"p", "qq"};
  body["n"] = 2;
  Json reply = post_ok(kTextPath, body);
  ASSERT_EQ(reply.at("choices").size(), 4u);
  EXPECT_EQ(reply.at("object"), "text_completion");
  EXPECT_EQ(reply.at("choices").at(2).at("text"), "A");
  EXPECT_EQ(reply.at("choices").at(3).at("text"), "B");
  EXPECT_EQ(reply.at("usage").at("prompt_tokens"), 3);
  body["prompt"] = Json::parse("[[104, 105], [33]]");
  body["echo"] = true;
  reply = post_ok(kTextPath, body);
  EXPECT_EQ(reply.at("choices").at(0).at("text"), "hiA");
  EXPECT_EQ(reply.at("choices").at(3).at("text"), "!B");
  EXPECT_EQ(engine->requests().back().prompt, (std::vector<int32_t>{33}));
}

TEST_F(ApiGenerate, SamplingValuesReachTheEngine) {
  Json body = completion("p");
  body.update(Json::parse(R"({"temperature": 0.5, "top_p": 0.25, "min_p": 0.125, "presence_penalty": 1,
      "frequency_penalty": -1, "repetition_penalty": 1.5, "logprobs": 3, "min_tokens": 2, "max_tokens": 9,
      "stop_token_ids": [65], "priority": 4})"));
  post_ok(kTextPath, body);
  sched::SequenceRequest request = engine->requests().back();
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 0.25f);
  EXPECT_EQ(request.sampling.min_p, 0.125f);
  EXPECT_EQ(request.sampling.top_k, 40);  // the model's default
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.presence_penalty, 1.0f);
  EXPECT_EQ(request.sampling.frequency_penalty, -1.0f);
  EXPECT_EQ(request.sampling.num_logprobs, 3);
  EXPECT_EQ(request.sampling.min_tokens, 2);
  EXPECT_EQ(request.sampling.max_tokens, 9);
  EXPECT_EQ(request.sampling.end_token_ids, (std::vector<int32_t>{257, 65}));
  EXPECT_EQ(request.priority, 4);

  body["ignore_eos"] = true;
  body["top_k"] = -1;
  post_ok(kTextPath, body);
  request = engine->requests().back();
  EXPECT_EQ(request.sampling.end_token_ids, (std::vector<int32_t>{65}));
  EXPECT_EQ(request.sampling.top_k, 0);
}

TEST_F(ApiGenerate, RulesOfSingleTokensReachTheEngine) {
  for (const char* path : {kTextPath, kChatPath}) {
    Json body = path == std::string(kChatPath) ? chat("p") : completion("p");
    body.update(Json::parse(R"({"logit_bias": {"65": -100, "7": 2.5}, "allowed_token_ids": [9, 65, 9],
        "bad_words": ["hi", "  hi"], "no_repeat_ngram_size": 3})"));
    post_ok(path, body);
    const sched::SamplingParams sampling = engine->requests().back().sampling;
    const TokenBias biases[] = {{65, -100.0f}, {7, 2.5f}};  // in the order of the names
    const std::vector<int32_t> bare = {'h', 'i'};
    const std::vector<int32_t> spaced = {' ', 'h', 'i'};
    const std::vector<int32_t> bans[] = {bare, spaced, bare, spaced};
    EXPECT_EQ(sampling.rules.words, pack_rules({9, 65}, biases, bans).words);
    EXPECT_TRUE(check_rules(sampling.rules.counts, sampling.rules.words).ok());
    EXPECT_EQ(sampling.no_repeat_ngram_size, 3);
  }
  post_ok(kTextPath, completion("p"));
  EXPECT_TRUE(engine->requests().back().sampling.rules.counts.empty());
}

TEST_F(ApiGenerate, DefaultLengthsAndSeeds) {
  engine->set_scripts({{97}});  // never ends by itself
  Json body = {{"model", "tiny"}, {"prompt", "pp"}};
  Json reply = post_ok(kTextPath, body);
  EXPECT_EQ(reply.at("choices").at(0).at("text"), std::string(16, 'a'));
  EXPECT_EQ(reply.at("choices").at(0).at("finish_reason"), "length");
  body["prompt"] = std::string(kMaxModelLen - 3, 'p');
  EXPECT_EQ(post_ok(kTextPath, body).at("usage").at("completion_tokens"), 3);
  reply = post_ok(kChatPath, chat("x"));
  EXPECT_EQ(reply.at("usage").at("total_tokens"), kMaxModelLen);
  std::set<uint64_t> seeds;
  for (const auto& request : engine->requests()) seeds.insert(request.sampling.seed);
  EXPECT_EQ(seeds.size(), 3u);
}

TEST_F(ApiGenerate, PromptsOfOneRequestDrawApartUnlessItNamesASeed) {
  using Draws = std::set<std::pair<uint64_t, uint32_t>>;
  auto draws_of = [&](const Json& body) {
    const size_t before = engine->requests().size();
    post_ok(kTextPath, body);
    Draws draws;
    const std::vector<sched::SequenceRequest> requests = engine->requests();
    for (size_t i = before; i < requests.size(); ++i)
      draws.emplace(requests[i].sampling.seed, requests[i].sampling.choice);
    return draws;
  };
  Json body = {{"model", "tiny"}, {"prompt", {"p", "p", "p"}}, {"n", 2}, {"max_tokens", 1}};
  EXPECT_EQ(draws_of(body).size(), 6u);
  body["seed"] = 7;
  EXPECT_EQ(draws_of(body), (Draws{{7, 0}, {7, 1}}));
}

TEST_F(ApiGenerate, TheChatTemplateGetsKwargsAndTheLastMessageCanGoOn) {
  Json body = chat("x");
  body["chat_template_kwargs"] = {{"suffix", "think"}};
  post_ok(kChatPath, body);
  EXPECT_EQ(engine->requests().back().prompt, byte_ids("user: x\nassistant: think"));
  body = chat("x");
  body["messages"].push_back({{"role", "assistant"}, {"content", "so"}});
  body["continue_final_message"] = true;
  post_ok(kChatPath, body);
  EXPECT_EQ(engine->requests().back().prompt, byte_ids("user: x\nassistant: so"));
}

TEST_F(ApiGenerate, LogprobsOfAChat) {
  engine->set_scripts({script("\u00e9!")});
  Json body = chat("x");
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  Json content = post_ok(kChatPath, body).at("choices").at(0).at("logprobs").at("content");
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0].at("bytes"), Json::array({0xc3}));
  EXPECT_EQ(content[0].at("token"), "bytes:\\xc3");
  EXPECT_EQ(content[2].at("token"), "!");
  EXPECT_FLOAT_EQ(content[2].at("logprob"), -0.5f);
  ASSERT_EQ(content[2].at("top_logprobs").size(), 2u);
  EXPECT_EQ(content[2].at("top_logprobs")[1].at("token"), "\"");
  EXPECT_FLOAT_EQ(content[2].at("top_logprobs")[1].at("logprob"), -1.5f);

  Json streamed = Json::array();
  for (const Json& chunk : stream(kChatPath, body).chunks) {
    const Json& logprobs = chunk.at("choices").at(0).at("logprobs");
    if (logprobs.is_null()) continue;
    for (const Json& one : logprobs.at("content")) streamed.push_back(one);
  }
  EXPECT_EQ(streamed, content);
}

TEST_F(ApiGenerate, LogprobsOfACompletion) {
  engine->set_scripts({script("ab")});
  Json body = completion("x");
  body["logprobs"] = 1;
  Json logprobs = post_ok(kTextPath, body).at("choices").at(0).at("logprobs");
  EXPECT_EQ(logprobs.at("tokens"), Json({"a", "b", "<|end|>"}));
  EXPECT_EQ(logprobs.at("token_logprobs"), Json({-0.5, -0.5, -0.5}));
  EXPECT_EQ(logprobs.at("top_logprobs").at(1), Json({{"b", -0.5}}));
  EXPECT_EQ(logprobs.at("text_offset"), Json({0, 1, 2}));
}

// So harnesses score a text: they drop the last entry, and sum those before it.
TEST_F(ApiGenerate, AScoredPromptHasOneEntryMoreAlsoWhereItEnds) {
  engine->set_scripts({{-1}});
  Json body = completion("ab");
  body.update(Json::parse(R"({"echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0})"));
  const Json choice = post_ok(kTextPath, body).at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "ab");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  const Json& logprobs = choice.at("logprobs");
  EXPECT_EQ(logprobs.at("tokens"), Json({"a", "b", "<|end|>"}));
  EXPECT_EQ(logprobs.at("token_logprobs"), Json({nullptr, -0.25, -0.5}));
  EXPECT_EQ(logprobs.at("top_logprobs").at(2), Json({{"<|end|>", -0.5}}));
  EXPECT_EQ(logprobs.at("text_offset"), Json({0, 1, 2}));
  Json streamed = Json::array();
  for (const Json& chunk : stream(kTextPath, body).chunks) {
    const Json& one = chunk.at("choices").at(0);
    if (one.at("logprobs").is_null()) continue;
    for (const Json& each : one.at("logprobs").at("token_logprobs")) streamed.push_back(each);
  }
  EXPECT_EQ(streamed, logprobs.at("token_logprobs"));
}

TEST_F(ApiGenerate, LogprobsCallTokensByTheirIdsWhereThatIsAskedFor) {
  engine->set_scripts({script("\u00e9")});
  Json body = completion("x");
  body["logprobs"] = 1;
  body["return_tokens_as_token_ids"] = true;
  const Json logprobs = post_ok(kTextPath, body).at("choices").at(0).at("logprobs");
  EXPECT_EQ(logprobs.at("tokens"), Json({"token_id:195", "token_id:169", "token_id:257"}));
  EXPECT_EQ(logprobs.at("top_logprobs").at(1), Json({{"token_id:169", -0.5}}));
  EXPECT_EQ(logprobs.at("text_offset").size(), 3u);

  body = chat("x");
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  body["return_tokens_as_token_ids"] = true;
  const Json reply = post_ok(kChatPath, body);
  EXPECT_EQ(reply.at("choices").at(0).at("message").at("content"), "\u00e9");
  const Json second = reply.at("choices").at(0).at("logprobs").at("content").at(1);
  EXPECT_EQ(second.at("token"), "token_id:169");
  EXPECT_EQ(second.at("bytes"), Json::array({0xa9}));
  EXPECT_EQ(second.at("top_logprobs").at(1).at("token"), "token_id:170");
}

TEST_F(ApiGenerate, AnEchoWithLogprobsScoresThePrompt) {
  engine->set_scripts({script("b"), script("c")});
  Json body = completion("h\u00e9y");
  body["echo"] = true;
  body["logprobs"] = 2;
  body["n"] = 2;
  Json reply = post_ok(kTextPath, body);
  for (size_t i = 0; i < 2; ++i) {
    const Json& choice = reply.at("choices").at(i);
    EXPECT_EQ(choice.at("text"), i == 0 ? "h\u00e9yb" : "h\u00e9yc");
    const Json& logprobs = choice.at("logprobs");
    EXPECT_EQ(logprobs.at("tokens"),
              Json({"h", "bytes:\\xc3", "bytes:\\xa9", "y", i == 0 ? "b" : "c", "<|end|>"}));
    EXPECT_EQ(logprobs.at("token_logprobs"), Json({nullptr, -0.25, -0.5, -0.75, -0.5, -0.5}));
    EXPECT_EQ(logprobs.at("text_offset"), Json({0, 1, 2, 2, 3, 4}));
    ASSERT_EQ(logprobs.at("top_logprobs").size(), 6u);
    EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
    EXPECT_EQ(logprobs.at("top_logprobs").at(3), Json({{"y", -0.75}, {"z", -1.75}}));
    EXPECT_FALSE(choice.contains("prompt_logprobs"));
  }
  Stream streamed = stream(kTextPath, body);
  Json tokens = Json::array();
  for (const Json& chunk : streamed.chunks) {
    const Json& one = chunk.at("choices").at(0);
    if (one.at("index") != 1 || one.at("logprobs").is_null()) continue;
    for (const Json& token : one.at("logprobs").at("token_logprobs")) tokens.push_back(token);
  }
  EXPECT_EQ(streamed.text(1), "h\u00e9yc");
  EXPECT_EQ(tokens, Json({nullptr, -0.25, -0.5, -0.75, -0.5, -0.5}));
}

TEST_F(ApiGenerate, AnEchoWithoutNewTokens) {
  engine->set_scripts({script("more")});
  Json body = completion("ab");
  body["echo"] = true;
  body["logprobs"] = 0;
  body["max_tokens"] = 0;
  Json reply = post_ok(kTextPath, body);
  const Json& choice = reply.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "ab");
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(choice.at("logprobs").at("token_logprobs"), Json({nullptr, -0.25}));
  EXPECT_EQ(reply.at("usage").at("completion_tokens"), 0);
  EXPECT_EQ(stream(kTextPath, body).text(), "ab");
  body["prompt"] = std::string(kMaxModelLen, 'a');
  EXPECT_NE(post(kTextPath, body).body.find("512 tokens and leaves no room"), std::string::npos);
}

TEST_F(ApiGenerate, PromptLogprobs) {
  engine->set_scripts({script("x")});
  Json body = completion("ab");
  body["prompt_logprobs"] = 1;
  body["n"] = 2;
  Json reply = post_ok(kTextPath, body);
  Json expected = Json::parse(R"([null, {"98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"}}])");
  EXPECT_EQ(reply.at("choices").at(0).at("prompt_logprobs"), expected);
  EXPECT_EQ(reply.at("choices").at(1).at("prompt_logprobs"), expected);
  EXPECT_EQ(reply.at("choices").at(0).at("text"), "x");
  EXPECT_TRUE(reply.at("choices").at(0).at("logprobs").is_null());
  EXPECT_EQ(engine->requests().back().sampling.num_prompt_logprobs, -1) << "once is enough";

  body = chat("q");
  body["prompt_logprobs"] = 0;
  reply = post_ok(kChatPath, body);
  ASSERT_EQ(reply.at("prompt_logprobs").size(), std::string("user: q\nassistant: ").size());
  EXPECT_EQ(reply.at("prompt_logprobs").at(1),
            Json::parse(R"({"115": {"logprob": -0.25, "rank": null, "decoded_token": "s"}})"));
}

TEST_F(ApiGenerate, BestOfRepliesTheLikeliest) {
  engine->set_scripts({script("one"), script("two two"), script("three"), script("four")});
  engine->set_logprobs({-2.0f, -0.9f, -3.0f, -1.0f});
  Json body = completion("x");
  body["best_of"] = 4;
  body["n"] = 2;
  Json reply = post_ok(kTextPath, body);
  ASSERT_EQ(reply.at("choices").size(), 2u);
  EXPECT_EQ(reply.at("choices").at(0).at("text"), "two two") << "by the mean: its sum is not the greatest";
  EXPECT_EQ(reply.at("choices").at(1).at("text"), "four");
  EXPECT_EQ(reply.at("choices").at(1).at("index"), 1);
  EXPECT_TRUE(reply.at("choices").at(0).at("logprobs").is_null());
  EXPECT_EQ(reply.at("usage").at("completion_tokens"), 4 + 8 + 6 + 5);
  EXPECT_EQ(engine->requests().back().sampling.num_logprobs, 0);
  body["prompt"] = {"a", "b"};
  body["n"] = 1;
  reply = post_ok(kTextPath, body);
  ASSERT_EQ(reply.at("choices").size(), 2u);
  EXPECT_EQ(reply.at("choices").at(1).at("text"), "two two");
  body["best_of"] = 1;
  body["stream"] = true;
  EXPECT_EQ(stream(kTextPath, body).text(1), "one");
}

TEST_F(ApiGenerate, AStopStringEndsTheSequenceInTheEngine) {
  engine->set_scripts({byte_ids("say STOP now and go on for long")});
  Json body = completion("x");
  body["stop"] = "STOP";
  body["max_tokens"] = 400;
  engine->pause_after(20);  // a few tokens ahead
  Json reply = post_ok(kTextPath, body);
  EXPECT_EQ(reply.at("choices").at(0).at("text"), "say ");
  EXPECT_EQ(reply.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(reply.at("usage").at("completion_tokens"), 8);
  EXPECT_EQ(engine->num_cancelled(), 1u);
}

TEST_F(ApiGenerate, AClientThatLeavesFreesItsSequences) {
  engine->set_scripts({{97}});
  for (bool streamed : {true, false}) {
    Json body = completion("x");
    body["max_tokens"] = 400;
    body["n"] = 3;
    body["stream"] = streamed;
    size_t before = engine->num_cancelled();
    engine->resume();
    engine->pause_after(30);
    http::Client client;
    std::jthread leaver([&] {
      if (streamed || !eventually([&] { return engine->num_running() == 3; })) return;
      client.abort();
    });
    int events = 0;
    auto response =
        client.stream_events({.method = "POST", .url = server->url() + kTextPath, .body = body.dump()},
                             soon(),
                             [&](const http::SseEvent&) { return ++events < 3; });
    EXPECT_EQ(response.ok(), streamed);
    EXPECT_TRUE(eventually([&] { return engine->num_cancelled() == before + 3; }));
    EXPECT_TRUE(engine->idle());
  }
  EXPECT_TRUE(server->drain(soon()).ok());
}

TEST_F(ApiGenerate, SixtyFourStreamsAtOnce) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "w" + std::to_string(i) + "\u00fc ";
  engine->set_scripts({script(text)});
  std::vector<std::future<Stream>> streams;
  streams.reserve(64);
  for (int i = 0; i < 64; ++i) {
    streams.push_back(std::async(std::launch::async, [&] {
      Json body = completion("x");
      body["max_tokens"] = 500;
      return stream(kTextPath, body);
    }));
  }
  for (auto& pending : streams) {
    Stream streamed = pending.get();
    EXPECT_TRUE(streamed.done);
    EXPECT_EQ(streamed.text(), text);
  }
}

TEST_F(ApiGenerate, RequestTimeout) {
  start({.request_timeout_seconds = 0.3});
  engine->pause();
  http::Response response = post(kTextPath, completion("x"));
  EXPECT_EQ(response.status, 504);
  EXPECT_EQ(Json::parse(response.body).at("error").at("code"), "request_timeout");
  EXPECT_TRUE(eventually([&] { return engine->idle(); }));
}

TEST_F(ApiGenerate, Models) {
  Json list = Json::parse(get("/v1/models").body);
  EXPECT_EQ(list.at("object"), "list");
  EXPECT_EQ(list.at("data").at(0).at("id"), "tiny");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), kMaxModelLen);
  EXPECT_EQ(Json::parse(get("/v1/models/tiny").body).at("object"), "model");
  EXPECT_EQ(Json::parse(get("/v1/models/owner/tiny").body).at("id"), "owner/tiny");
  EXPECT_EQ(Json::parse(get("/v1/models/owner%2Ftiny").body).at("id"), "owner/tiny");
}

}  // namespace
}  // namespace llm_dist::server
