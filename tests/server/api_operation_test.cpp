// What whoever runs the server relies on: request ids, and a log that names requests and never quotes them.
#include <stdio.h>

#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "src/base/log_format.h"
#include "tests/server/server_fixture.h"

namespace llm_dist::server {
namespace {

constexpr const char* kChatPath = "/v1/chat/completions";
constexpr const char* kTextPath = "/v1/completions";

class ApiOperation : public ServerFixture {
 protected:
  static std::string id_of(const http::Response& response) {
    EXPECT_EQ(response.headers.count("X-Request-Id"), 1u);
    const std::string* id = response.headers.find("X-Request-Id");
    return id == nullptr ? "" : *id;
  }
  std::string id_for(const std::string& given) { return id_of(get("/health", {{"X-Request-Id", given}})); }
};

TEST_F(ApiOperation, EveryAnswerHasARequestId) {
  std::set<std::string> made;
  std::vector<http::Response> answers = {get("/health"),
                                         get("/nowhere"),
                                         get(kChatPath),
                                         get("/metrics"),
                                         post(kChatPath, std::string("{")),
                                         post(kTextPath, completion("x")),
                                         post("/tokenize", Json({{"prompt", "x"}}))};
  for (const http::Response& answer : answers) made.insert(id_of(answer));
  EXPECT_EQ(made.size(), answers.size());
  Json body = completion("x");
  body["stream"] = true;
  EXPECT_EQ(id_of(post(kTextPath, body.dump(), {{"X-Request-Id", "of-the-client"}})), "of-the-client");
}

TEST_F(ApiOperation, ASaneIdOfTheClientIsKept) {
  for (const char* sane : {"a", "0b1c-22", "trace/7:span=3", "user@host.example_1+2"})
    EXPECT_EQ(id_for(sane), sane);
  EXPECT_EQ(id_for(std::string(128, 'x')), std::string(128, 'x'));
  for (const std::string& odd : {std::string(),
                                 std::string(129, 'x'),
                                 std::string("two words"),
                                 std::string("a\"b"),
                                 std::string("\xc3\xa9")}) {
    EXPECT_NE(id_for(odd), odd);
    EXPECT_EQ(id_for(odd).size(), 32u) << odd;
  }
}

TEST_F(ApiOperation, ARepliesIdIsItsRequests) {
  auto reply = post(kChatPath, chat("x").dump(), {{"X-Request-Id", "r-1"}});
  EXPECT_EQ(Json::parse(reply.body).at("id"), "chatcmpl-r-1");
  reply = post(kTextPath, completion("x").dump(), {{"X-Request-Id", "r-2"}});
  EXPECT_EQ(Json::parse(reply.body).at("id"), "cmpl-r-2");
}

class ApiLog : public ApiOperation {
 protected:
  void SetUp() override {
    set_log_format(LogFormat::kJson);
    set_log_level(LogLevel::kDebug);
    testing::internal::CaptureStderr();
  }
  void TearDown() override {
    server.reset();
    if (!taken_) take();
    set_log_format(LogFormat::kText);
    set_log_level(LogLevel::kInfo);
  }
  // All that was written; nothing is captured afterwards.
  std::string take() {
    flush_log();
    taken_ = true;
    return testing::internal::GetCapturedStderr();
  }
  static std::vector<Json> parsed(const std::string& log) {
    std::vector<Json> lines;
    std::istringstream text(log);
    for (std::string line; std::getline(text, line);) {
      lines.push_back(Json::parse(line, nullptr, false));
      EXPECT_FALSE(lines.back().is_discarded()) << line;
    }
    return lines;
  }

 private:
  bool taken_ = false;
};

TEST_F(ApiLog, NamesEachRequestAndHowItWent) {
  start({});
  engine->set_scripts({script("abc")});
  post(kTextPath, completion("xy").dump(), {{"X-Request-Id", "good"}});
  Json bad = completion("xy");
  bad["max_tokens"] = -1;
  post(kTextPath, bad.dump(), {{"X-Request-Id", "bad"}});
  post("/tokenize", R"({"prompt": "xyz"})", {{"X-Request-Id", "split"}});
  engine->refuse(resource_exhausted("the queue is full"));
  post(kTextPath, completion("xy").dump(), {{"X-Request-Id", "busy"}});
  get("/nowhere", {{"X-Request-Id", "lost"}});
  get(kTextPath, {{"X-Request-Id", "wrong"}});
  server.reset();
  std::map<std::string, Json> of;
  for (const Json& line : parsed(take()))
    if (line.contains("request_id")) of[line.at("request_id").get<std::string>()] = line;
  ASSERT_TRUE(of.contains("good") && of.contains("bad") && of.contains("split") && of.contains("busy"));
  std::string good = of["good"].at("message");
  EXPECT_EQ(good.rfind("POST /v1/completions 200: 2 prompt tokens, 4 tokens, first after ", 0), 0u) << good;
  EXPECT_EQ(of["good"].at("level"), "info");
  EXPECT_EQ(of["bad"].at("message").get<std::string>().rfind("POST /v1/completions 400 refused after ", 0),
            0u);
  EXPECT_EQ(of["split"].at("message").get<std::string>().rfind("POST /tokenize 200: 3 tokens, ", 0), 0u);
  EXPECT_EQ(of["busy"].at("level"), "debug");  // or an overload fills the disk
  ASSERT_TRUE(of.contains("lost") && of.contains("wrong"));
  EXPECT_EQ(of["lost"].at("message"), "404 a request that no endpoint has seen");
  EXPECT_EQ(of["wrong"].at("message"), "405 a request that no endpoint has seen");
}

TEST_F(ApiLog, WhoeverIsRefusedFindsItCounted) {
  start({});
  Json bad = completion("x");
  bad["max_tokens"] = -1;
  flockfile(stderr);  // who logs the refusal stands still
  std::string metrics;
  std::thread client([&] {
    EXPECT_EQ(post(kTextPath, bad.dump()).status, 400);
    metrics = get("/metrics").body;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  funlockfile(stderr);
  client.join();
  EXPECT_NE(metrics.find("llm_dist_requests_refused_total{status=\"400\"} 1"), std::string::npos) << metrics;
}

TEST_F(ApiLog, SoIsWhatNoEndpointSees) {
  start({.api_keys = {"key"}, .max_body_bytes = 1000});
  const http::Headers key{{"Authorization", "Bearer key"}};
  EXPECT_EQ(get("/v1/models").status, 401);
  EXPECT_EQ(get("/nowhere", key).status, 404);
  EXPECT_EQ(get(kTextPath, key).status, 405);
  EXPECT_EQ(post(kTextPath, std::string(2000, 'x'), key).status, 413);
  const std::string metrics = get("/metrics", key).body;
  for (int status : {401, 404, 405, 413}) {
    const std::string line = format("llm_dist_requests_refused_total{status=\"{}\"} 1", status);
    EXPECT_NE(metrics.find(line), std::string::npos) << line << "\n" << metrics;
  }
}

TEST_F(ApiLog, NeverHoldsPromptsAnswersOrKeys) {
  const std::string key = "sk-Verysecret9";
  const std::string prompt = "Pr0mptMarker";
  const std::string answer = "Answ3rMarker";
  start({.api_keys = {key}});
  engine->set_scripts({script(answer)});
  const http::Headers right = {{"Authorization", "Bearer " + key}};
  auto send = [&](const std::string& path, const std::string& body) { post(path, body, right); };
  send(kTextPath, completion(prompt).dump());
  send(kChatPath, chat(prompt).dump());
  send("/tokenize", Json({{"prompt", prompt}}).dump());
  send("/detokenize", Json({{"tokens", byte_ids(prompt)}}).dump());
  // Wherever an error could quote it.
  for (const char* field : {"stop", "user", "model", "seed", "max_tokens", "stream_options", "logit_bias"}) {
    Json body = completion(prompt);
    body[field] = prompt;
    send(kTextPath, body.dump());
  }
  Json unknown = completion("x");
  unknown[prompt] = 1;
  send(kTextPath, unknown.dump());
  send(kChatPath, R"({"messages": [{"role": ")" + prompt + R"("}]})");
  send(kChatPath, R"({"model": "tiny", ")" + prompt);
  send(kTextPath, "\"" + prompt + "\xff\"");
  send("/" + prompt, "");
  get("/v1/models/" + prompt + "?key=" + key, right);
  get("/metrics?" + key);
  for (const char* header : {"X-Request-Id", "Authorization", "User-Agent", "Cookie"})
    get("/v1/models", {{header, "of " + key}});
  EXPECT_NE(id_for(key), key);
  EXPECT_NE(id_for("x" + key + "y"), "x" + key + "y");
  engine->fail_running(unavailable("gone"));
  server.reset();
  std::string log = take();
  EXPECT_GT(parsed(log).size(), 10u);
  for (const std::string& secret : {key, prompt, answer})
    EXPECT_EQ(log.find(secret), std::string::npos) << secret << " in\n" << log;
}

}  // namespace
}  // namespace llm_dist::server
