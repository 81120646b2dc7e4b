// Loading, ready, draining, hung, failed; keys; metrics.
#include <fstream>
#include <future>

#include "tests/http/raw_client.h"
#include "tests/server/server_fixture.h"

namespace llm_dist::server {
namespace {

constexpr const char* kTextPath = "/v1/completions";

class ApiStates : public ServerFixture {
 protected:
  std::string error_code(const http::Response& response) {
    return Json::parse(response.body).at("error").at("code").get<std::string>();
  }
  void expect_state(int livez, int readyz, int request) {
    EXPECT_EQ(get("/livez").status, livez);
    EXPECT_EQ(get("/readyz").status, readyz);
    EXPECT_EQ(get("/health").status, readyz);
    http::Response response = post(kTextPath, completion("x"));
    EXPECT_EQ(response.status, request);
    if (request == 503) {
      EXPECT_NE(response.headers.find("Retry-After"), nullptr);
    }
  }
  double metric(const std::string& line_start, const http::Headers& headers = {}) {
    std::string text = "\n" + get("/metrics", headers).body;
    size_t at = text.find("\n" + line_start + " ");
    EXPECT_NE(at, std::string::npos) << line_start << " in\n" << text;
    return at == std::string::npos ? -1 : std::stod(text.substr(at + line_start.size() + 2));
  }
};

TEST_F(ApiStates, LoadingThenReady) {
  start_loading({});
  expect_state(200, 503, 503);
  EXPECT_EQ(error_code(post(kTextPath, completion("x"))), "loading");
  EXPECT_EQ(get("/v1/models").status, 503);
  EXPECT_EQ(get("/metrics").status, 200);
  EXPECT_EQ(get("/version").status, 200);
  attach();
  expect_state(200, 200, 200);
}

// Nothing can cut a tokenizer short, and a lost world ends within seconds all the same.
TEST_F(ApiStates, ShutdownWaitsForNoTokenizer) {
  const std::string text = Json({{"prompt", std::string(12 << 20, 'a')}}).dump();
  max_model_len = 1 << 20;
  EXPECT_TRUE(server->shutdown(soon()).ok());
  EXPECT_TRUE(server->ended());
  for (int attempt = 1; attempt < 20; ++attempt) {  // it may not have come yet
    start({});
    auto counting = std::async(std::launch::async, [&] {
      auto ignored = http::request(
          {.method = "POST", .url = server->url() + "/tokenize", .headers = {}, .body = text}, soon());
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * attempt));
    server->fail(unavailable("the world is lost"));
    Status ignored = server->shutdown(Deadline::after_seconds(0));
    counting.wait();
    if (!server->ended()) return;
  }
  FAIL() << "a shutdown waits for a text";
}

TEST_F(ApiStates, DrainingFinishesWhatIsOpen) {
  engine->set_scripts({script("all of it")});
  engine->pause();
  auto open = std::async(std::launch::async, [&] { return stream(kTextPath, completion("x")); });
  EXPECT_TRUE(eventually([&] { return engine->num_running() == 1; }));
  std::atomic<int> asked = 0;
  server->set_on_drain([&] { ++asked; });
  EXPECT_FALSE(server->drain_requested());
  EXPECT_EQ(post("/admin/drain", std::string()).status, 202);
  EXPECT_EQ(post("/admin/drain", std::string()).status, 202);
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(server->drain_requested());
  expect_state(200, 503, 503);
  EXPECT_FALSE(server->drain(Deadline::after_seconds(0.05)).ok());
  engine->resume();
  EXPECT_TRUE(server->drain(soon()).ok());
  EXPECT_EQ(open.get().text(), "all of it");
}

TEST_F(ApiStates, ADrainAskedForBeforeAnybodyListensIsHeard) {
  start_loading({});
  EXPECT_EQ(post("/admin/drain", std::string()).status, 202);
  std::atomic<int> asked = 0;
  server->set_on_drain([&] { ++asked; });
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(post("/admin/drain", std::string()).status, 202);
  EXPECT_EQ(asked, 1);
}

TEST_F(ApiStates, AFailureReachesOpenStreamsAndWaitingRequests) {
  engine->set_scripts({{97}});
  engine->pause_after(5);
  Json body = completion("x");
  body["max_tokens"] = 400;
  body["stream"] = true;
  std::vector<std::string> events;
  std::atomic<size_t> num_events = 0;
  auto open = std::async(std::launch::async, [&] {
    http::Client client;
    return client.stream_events({.method = "POST", .url = server->url() + kTextPath, .body = body.dump()},
                                soon(),
                                [&](const http::SseEvent& event) {
                                  events.push_back(event.data);
                                  num_events = events.size();
                                  return true;
                                });
  });
  EXPECT_TRUE(eventually([&] { return num_events > 1; }));
  auto waiting = std::async(std::launch::async, [&] { return post(kTextPath, completion("x")); });
  EXPECT_TRUE(eventually([&] { return engine->num_running() == 2; }));
  server->fail(unavailable("rank 1 on host b died"));
  EXPECT_TRUE(open.get().ok());
  EXPECT_NE(events.back().find("rank 1 on host b died"), std::string::npos);
  EXPECT_TRUE(Json::parse(events.back()).contains("error"));
  EXPECT_EQ(waiting.get().status, 503);
  expect_state(503, 503, 503);
  EXPECT_EQ(error_code(post(kTextPath, completion("x"))), "engine_failed");
  EXPECT_TRUE(eventually([&] { return engine->idle(); })) << "who failed is answered before";
}

TEST_F(ApiStates, AnEngineThatFailsOneSequenceEndsItsRequest) {
  engine->pause();
  auto waiting = std::async(std::launch::async, [&] { return post(kTextPath, completion("x")); });
  EXPECT_TRUE(eventually([&] { return engine->num_running() == 1; }));
  engine->fail_running(unavailable("the server is stopping"));
  EXPECT_EQ(waiting.get().status, 503);
}

TEST_F(ApiStates, NoProgressIsHung) {
  start_loading({.hung_after_seconds = 0.3});
  attach();
  std::atomic<int> hung = 0;
  std::atomic<int> closed = 0;
  std::atomic<int> get_livez = 0;
  server->set_on_hung([&](const Status&) {
    ++hung;
    server->fail(unavailable("hung"));  // as the launcher does
    get_livez = get("/livez").status;
    EXPECT_TRUE(server->shutdown(soon()).ok());
    ++closed;
  });
  engine->pause();
  auto waiting = std::async(std::launch::async, [&] { return post(kTextPath, completion("x")); });
  EXPECT_TRUE(eventually([&] { return hung == 1; }));
  EXPECT_EQ(waiting.get().status, 503);
  EXPECT_TRUE(eventually([&] { return closed == 1; }));
  EXPECT_EQ(get_livez, 503);
  EXPECT_TRUE(server->shutdown(Deadline::after_seconds(1)).ok());  // again: nothing left to do
}

TEST_F(ApiStates, TheEndWaitsForWhoReadsSlowly) {
  engine->set_scripts({{97}});
  Json body = completion("x");
  body.update(Json::parse(R"({"n": 128, "max_tokens": 400, "logprobs": 20})"));
  const std::string text = body.dump();
  http::RawClient slow(server->port(), 4096);
  slow.send(format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", kTextPath, text.size(), text));
  ASSERT_TRUE(eventually([&] { return engine->requests().size() == 128; }));
  std::atomic<bool> drained = false;
  auto ending = std::async(std::launch::async, [&] {
    EXPECT_TRUE(server->drain(soon()).ok());
    drained = true;
    return server->end(soon());
  });
  EXPECT_TRUE(eventually([&] { return drained.load(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const std::string answer = slow.read_to_end();
  EXPECT_GT(answer.size(), size_t{8} << 20) << "less fits into the kernel's buffers";
  EXPECT_TRUE(answer.ends_with("}"));
  EXPECT_TRUE(ending.get().ok());
}

TEST_F(ApiStates, TheEndComesAtOnceWhereNobodyReadsSlowly) {
  http::RawClient idle(server->port());
  idle.send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  idle.read_until("}");
  http::RawClient silent(server->port());
  http::RawClient sending(server->port());
  sending.send(format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{", kTextPath));
  const TimePoint begin = Clock::now();
  EXPECT_TRUE(server->end(soon()).ok());
  EXPECT_LT(seconds_between(begin, Clock::now()), 5);  // less than any connection's own time limits
}

TEST_F(ApiStates, ShutdownCutsOffAndFreesSequences) {
  engine->pause();
  auto waiting = std::async(std::launch::async, [&] {
    return http::request({.method = "POST", .url = server->url() + kTextPath, .body = completion("x").dump()},
                         soon());
  });
  EXPECT_TRUE(eventually([&] { return engine->num_running() == 1; }));
  EXPECT_FALSE(server->shutdown(Deadline::after_seconds(0.05)).ok());
  auto cut = waiting.get();
  ASSERT_TRUE(cut.ok()) << cut.status().to_string();
  EXPECT_EQ(cut->status, 503);
  EXPECT_EQ(error_code(*cut), "draining") << cut->body;
  EXPECT_TRUE(engine->idle());
}

TEST_F(ApiStates, KeysGuardAllButProbes) {
  start({.api_keys = {"first-key", "second-key"}});
  for (const char* path : {"/livez", "/readyz", "/health", "/version"}) EXPECT_EQ(get(path).status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/nowhere"}) {
    http::Response response = get(path);
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_EQ(error_code(response), "invalid_api_key");
  }
  EXPECT_EQ(post("/admin/drain", std::string()).status, 401);
  for (const char* header :
       {"first-key", "Bearer ", "Bearer first", "Bearer first-key2", "Basic first-key"}) {
    EXPECT_EQ(get("/v1/models", {{"Authorization", header}}).status, 401) << header;
  }
  EXPECT_EQ(get("/v1/models", {{"Authorization", "Bearer first-key"}}).status, 200);
  EXPECT_EQ(get("/v1/models", {{"authorization", "bearer second-key"}}).status, 200);
}

TEST_F(ApiStates, WhoHasNoKeySendsNoBody) {
  start({.api_keys = {"a-key"}});
  auto answer = [&](const std::string& path, const std::string& fields, size_t bytes) {
    http::RawClient client(server->port());
    client.send(format("POST {} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n{}Content-Length: {}\r\n\r\n",
                       path,
                       fields,
                       bytes));
    return client.read_until("\r\n\r\n");
  };
  constexpr size_t kMuch = 32 << 20;
  for (const char* path : {kTextPath, "/v1/chat/completions", "/tokenize", "/admin/drain", "/nowhere"}) {
    std::string refused = answer(path, "X-Request-Id: mine\r\n", kMuch);
    EXPECT_EQ(refused.find("HTTP/1.1 401"), 0u) << path << ": " << refused;
    EXPECT_NE(refused.find("X-Request-Id: mine\r\n"), std::string::npos) << refused;
  }
  EXPECT_EQ(answer("/health", "", kMuch).find("HTTP/1.1 413"), 0u);
  const std::string key = "Authorization: Bearer a-key\r\n";
  EXPECT_EQ(answer(kTextPath, key, kMuch).find("HTTP/1.1 100"), 0u);
  EXPECT_EQ(metric("llm_dist_requests_refused_total{status=\"401\"}", {{"Authorization", "Bearer a-key"}}),
            5);
}

TEST_F(ApiStates, WithoutKeysNoPageOfAnotherOriginMayAsk) {
  const http::Headers foreign[] = {
      {{"Origin", "http://evil.example"}}, {{"Origin", "null"}}, {{"Origin", "http://127.0.0.1:1"}}};
  for (const http::Headers& headers : foreign) {
    EXPECT_EQ(error_code(post("/admin/drain", std::string(), headers)), "foreign_page");
    http::Response refused = post(kTextPath, completion("x").dump(), headers);
    EXPECT_EQ(refused.status, 403);
    EXPECT_NE(refused.body.find("--api-key-file"), std::string::npos);
    EXPECT_EQ(get("/v1/models", headers).status, 403);
  }
  http::RawClient rebound(server->port());
  rebound.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(rebound.read_until("}}").find("HTTP/1.1 403"), 0u);
  EXPECT_TRUE(engine->requests().empty());
  EXPECT_FALSE(server->drain_requested());
  EXPECT_EQ(metric("llm_dist_requests_refused_total{status=\"403\"}"), 10);
  const http::Headers own{{"Origin", server->url()}};
  EXPECT_EQ(post(kTextPath, completion("x").dump(), own).status, 200);
  EXPECT_EQ(post(kTextPath, completion("x")).status, 200);
  EXPECT_EQ(post("/admin/drain", std::string(), own).status, 202);
}

TEST_F(ApiStates, WithAKeyAnyOriginMayAsk) {
  start({.api_keys = {"a-key"}});
  http::RawClient client(server->port());
  client.send(
      "GET /v1/models HTTP/1.1\r\nHost: a.name\r\nOrigin: http://page.example\r\n"
      "Authorization: Bearer a-key\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n").find("HTTP/1.1 200"), 0u);
}

TEST_F(ApiStates, WhoListensBeyondThisMachineHasAnyName) {
  start({.host = "0.0.0.0", .allow_keyless_remote = true});
  auto status = [&](const std::string& fields) {
    http::RawClient client(server->port());
    client.send("GET /v1/models HTTP/1.1\r\nHost: node7:8000\r\n" + fields + "\r\n");
    return client.read_until("\r\n\r\n").substr(0, 12);
  };
  EXPECT_EQ(status(""), "HTTP/1.1 200");
  EXPECT_EQ(status("Origin: http://node7:8000\r\n"), "HTTP/1.1 200");
  EXPECT_EQ(status("Origin: http://evil.example\r\n"), "HTTP/1.1 403");
}

TEST_F(ApiStates, NoOpenDoorWithoutAKey) {
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "example.org"}) {
    auto refused = ApiServer::start({.host = host, .port = 0});
    ASSERT_FALSE(refused.ok()) << host;
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("--api-key-file"), std::string::npos);
  }
  EXPECT_TRUE(ApiServer::start({.host = "0.0.0.0", .port = 0, .api_keys = {"k"}}).ok());
  EXPECT_TRUE(ApiServer::start({.host = "0.0.0.0", .port = 0, .allow_keyless_remote = true}).ok());
}

TEST_F(ApiStates, KeyFiles) {
  std::string path = ::testing::TempDir() + "/llm_dist_keys";
  auto written = [&](const char* text) {
    std::ofstream(path) << text;
    return read_api_keys(path);
  };
  EXPECT_EQ(*written("# ours\n a1 \r\n\nb2"), (std::vector<std::string>{"a1", "b2"}));
  EXPECT_FALSE(written("# nothing\n").ok());
  EXPECT_FALSE(written("two words\n").ok());
  EXPECT_EQ(read_api_keys(path + "-absent").status().code(), StatusCode::kNotFound);
  std::remove(path.c_str());
}

TEST_F(ApiStates, Metrics) {
  engine->set_scripts({script("abc")});
  post_ok(kTextPath, completion("x"));
  Json body = completion("x");
  body["max_tokens"] = 2;
  post_ok(kTextPath, body);
  engine::EngineStats stats;
  stats.scheduler.num_running = 3;
  stats.scheduler.num_waiting = 4;
  stats.scheduler.num_total_blocks = 8;
  stats.scheduler.num_free_blocks = 6;
  stats.scheduler.num_preemptions = 5;
  stats.scheduler.allocated_kv_tokens = 100;
  stats.scheduler.used_kv_tokens = 97;
  stats.scheduler.generation_tokens_total = 77;
  stats.step_seconds.add(0.001);
  stats.step_seconds.add(0.002);
  stats.ranks.resize(2);
  stats.ranks[1].step_seconds.add(0.25);
  stats.ranks[1].collectives[0] = {.calls = 60, .seconds = 0.125};
  stats.rank_step_skew_seconds = 0.5;
  stats.pipeline_bubble_fraction = 0.75;
  engine->set_stats(stats);
  EXPECT_EQ(metric("llm_dist_num_requests_running"), 3);
  EXPECT_EQ(metric("llm_dist_num_requests_waiting"), 4);
  EXPECT_EQ(metric("llm_dist_kv_cache_usage_perc"), 0.25);
  EXPECT_NEAR(metric("llm_dist_kv_cache_unused_perc"), 0.03, 1e-9);
  EXPECT_EQ(metric("llm_dist_num_preemptions_total"), 5);
  EXPECT_EQ(metric("llm_dist_generation_tokens_total"), 77);
  EXPECT_EQ(metric("llm_dist_step_latency_seconds_count"), 2);
  EXPECT_EQ(metric("llm_dist_step_latency_seconds_bucket{le=\"+Inf\"}"), 2);
  EXPECT_EQ(metric("llm_dist_step_time_seconds_count{rank=\"0\"}"), 0);
  EXPECT_EQ(metric("llm_dist_step_time_seconds_sum{rank=\"1\"}"), 0.25);
  EXPECT_EQ(metric("llm_dist_collective_time_seconds_count{rank=\"1\",op=\"all_reduce\"}"), 60);
  EXPECT_EQ(metric("llm_dist_collective_time_seconds_sum{rank=\"1\",op=\"all_reduce\"}"), 0.125);
  EXPECT_EQ(metric("llm_dist_rank_step_skew_seconds"), 0.5);
  EXPECT_EQ(metric("llm_dist_pipeline_bubble_fraction"), 0.75);
  EXPECT_EQ(metric("llm_dist_request_success_total{finished_reason=\"stop\"}"), 1);
  EXPECT_EQ(metric("llm_dist_request_success_total{finished_reason=\"length\"}"), 1);
  EXPECT_EQ(metric("llm_dist_request_success_total{finished_reason=\"abort\"}"), 0);
  EXPECT_EQ(metric("llm_dist_time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(metric("llm_dist_request_queue_time_seconds_count"), 2);
  EXPECT_EQ(metric("llm_dist_request_prefill_time_seconds_count"), 2);
  EXPECT_EQ(metric("llm_dist_request_decode_time_seconds_count"), 2);
  EXPECT_EQ(metric("llm_dist_inter_token_latency_seconds_count"), 3 + 1);
  EXPECT_EQ(metric("llm_dist_e2e_request_latency_seconds_count"), 2);
  EXPECT_EQ(metric("llm_dist_build_info{version=\"0.1.0\"}"), 1);
}

}  // namespace
}  // namespace llm_dist::server
