// The jobs API over HTTP, on a real store; nobody starts the jobs.
#include "cluster/api/jobs_api.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cluster/api/api_reply.h"
#include "cluster/api/job_json.h"
#include "cluster/store/sqlite_store.h"
#include "src/http/client.h"
#include "tests/cluster/crash_vfs.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using testing::CrashVfs;

constexpr const char* kBody = R"({"type":"bench","model":"m","bench":"latency"})";

// Counts the jobs that are read on the thread that writes.
class WatchedStore : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Status apply(std::span<Pending> batch) override {
    writer_ = std::this_thread::get_id();
    return ForwardingStore::apply(batch);
  }
  Result<Job> job(JobId id) override {
    if (std::this_thread::get_id() == writer_) ++num_reads_of_writer;
    return ForwardingStore::job(id);
  }
  std::atomic<int> num_reads_of_writer = 0;

 private:
  std::atomic<std::thread::id> writer_;
};

class JobsApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_sqlite_store({.path = "s", .vfs = disk_.name()});
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    store_ = std::make_unique<WatchedStore>(std::move(opened).value());
    feed_ = std::make_unique<EventFeed>(*store_);
    commit_ = std::make_unique<GroupCommit>(
        *store_, GroupCommit::Options{.on_changed = [this](const auto& jobs) { feed_->changed(jobs); }});
    workers_ = std::make_unique<Workers>(2);
    api_ = std::make_unique<JobsApi>(JobsApi::Parts{.store = *store_,
                                                    .commit = *commit_,
                                                    .feed = *feed_,
                                                    .workers = *workers_,
                                                    .catalogue = catalogue_,
                                                    .secrets = secrets_,
                                                    .access = access_,
                                                    .attempts_folder = folder_.file("jobs")});
    api_->add_routes(router_);
    server_ = std::move(http::Server::create({}, [this](auto request, auto writer) {
                router_(std::move(request), std::move(writer));
              })).value();
  }

  void TearDown() override { workers_->stop(); }

  struct Reply {
    int status = 0;
    json body;
    http::Headers headers;
  };
  Reply send(const std::string& method,
             const std::string& path,
             const std::string& body = "",
             http::Headers headers = {}) {
    auto answer =
        http::request({.method = method, .url = server_->url() + path, .headers = headers, .body = body},
                      Deadline::after(std::chrono::seconds(120)));
    if (!answer.ok()) return {.status = -1, .body = answer.status().to_string()};
    return {answer.value().status, json::parse(answer.value().body, nullptr, false), answer.value().headers};
  }
  Reply post(const std::string& path, const std::string& body = "", http::Headers headers = {}) {
    return send("POST", path, body, std::move(headers));
  }
  Reply get(const std::string& path, http::Headers headers = {}) {
    return send("GET", path, "", std::move(headers));
  }
  void change(JobId id, JobState to) {
    ASSERT_TRUE(commit_->commit(1, ChangeJob{.job = id, .to = to, .reason = "test"}).ok());
  }
  void start(JobId id) { ASSERT_TRUE(commit_->commit(1, StartAttempt{.job = id, .slots = 1}).ok()); }
  static std::string text(const Reply& reply) { return reply.body.dump(); }

  testing::TemporaryFolder folder_;
  CrashVfs disk_{"jobs-api"};
  Catalogue catalogue_{{{"m", {.path = "/m.gguf", .max_ranks = 4}}}};
  AttemptSecrets secrets_{"root"};
  Access access_{std::vector<AccessKey>()};
  std::unique_ptr<WatchedStore> store_;
  std::unique_ptr<EventFeed> feed_;
  std::unique_ptr<JobsApi> api_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<GroupCommit> commit_;  // what is queued when it ends still calls the above
  http::Router router_{render_http_error};
  std::unique_ptr<http::Server> server_;
};

TEST_F(JobsApiTest, SubmitAndGet) {
  Reply made = post("/v1/jobs", R"({"type":"serve","model":"m","tp":2,"pp":2,"priority":3,"project":"a"})");
  ASSERT_EQ(made.status, 201) << text(made);
  EXPECT_EQ(*made.headers.find("Location"), "/v1/jobs/job-1");
  EXPECT_EQ(*made.headers.find("ETag"), "\"1\"");
  EXPECT_EQ(made.body["state"], "QUEUED");
  EXPECT_EQ(made.body["spec"], json::parse(R"({"model":"m","tp":2,"pp":2})"));
  Reply back = get("/v1/jobs/job-1");
  EXPECT_EQ(back.status, 200);
  EXPECT_EQ(back.body, made.body);
  EXPECT_EQ(get("/v1/jobs/job-2").status, 404);
  EXPECT_EQ(get("/v1/jobs/nonsense").status, 404);
}

TEST_F(JobsApiTest, WhatThrowsFailsAloneAndNotTheCoordinator) {
  auto work = [](const http::Request&, const WriterPtr&) {
    throw std::runtime_error("nobody thought of this");
  };
  router_.add("GET", "/throws", on_worker(*workers_, work));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(get("/throws").status, 500);
  EXPECT_EQ(get("/v1/jobs").status, 200) << "the workers are still there";
}

TEST_F(JobsApiTest, BadRequestsNameTheField) {
  const std::tuple<const char*, int, const char*> kBad[] = {
      {"", 400, ""},
      {"[]", 400, ""},
      {"{", 400, ""},
      {"{}", 400, "type"},
      {R"({"type":7})", 400, "type"},
      {R"({"type":"shell","model":"m"})", 400, "type"},
      {R"({"type":"batch_inference","model":"m"})", 400, "type"},
      {R"({"type":"serve"})", 400, "model"},
      {R"({"type":"serve","model":7})", 400, "model"},
      {R"({"type":"serve","model":""})", 400, "model"},
      {R"({"type":"serve","model":"../m"})", 404, "model"},
      {R"({"type":"serve","model":"m","modle":"x"})", 400, "modle"},
      {R"({"type":"serve","model":"m","command":"rm -rf /"})", 400, "command"},
      {R"({"type":"serve","model":"m","tp":0})", 400, "tp"},
      {R"({"type":"serve","model":"m","tp":1.5})", 400, "tp"},
      {R"({"type":"serve","model":"m","tp":"2"})", 400, "tp"},
      {R"({"type":"serve","model":"m","tp":18446744073709551615})", 400, "tp"},
      {R"({"type":"serve","model":"m","tp":4,"pp":2})", 400, "tp"},
      {R"({"type":"serve","model":"m","bench":"latency"})", 400, "bench"},
      {R"({"type":"serve","model":"m","priority":1000})", 400, "priority"},
      {R"({"type":"serve","model":"m","expires_after_seconds":0})", 400, "expires_after_seconds"},
      {R"({"type":"bench","model":"m"})", 400, "bench"},
      {R"({"type":"bench","model":"m","bench":"everything"})", 400, "bench"},
      {R"({"type":"bench","model":"m","bench":"latency","batch":"1,,2"})", 400, "batch"},
      {R"({"type":"bench","model":"m","bench":"latency","batch":"1 --help"})", 400, "batch"},
      {R"({"type":"bench","model":"m","bench":"throughput","batch":"1"})", 400, "batch"},
      {R"({"type":"bench","model":"m","bench":"latency","input_len":-1})", 400, "input_len"},
  };
  for (const auto& [body, status, param] : kBad) {
    Reply reply = post("/v1/jobs", body);
    EXPECT_EQ(reply.status, status) << body;
    EXPECT_EQ(reply.body["error"]["param"], *param == '\0' ? json(nullptr) : json(param))
        << body << text(reply);
  }
  EXPECT_NE(text(post("/v1/jobs", R"({"type":"serve","model":"m","modle":"x"})")).find("'model'"),
            std::string::npos);
  EXPECT_EQ(get("/v1/jobs").body["data"].size(), 0u);
}

TEST_F(JobsApiTest, AnIdempotencyKeyIsOneJob) {
  http::Headers key{{"Idempotency-Key", "k1"}};
  Reply first = post("/v1/jobs", kBody, key);
  change(1, JobState::kFailed);
  // Another spelling of the same request; the answer of then, not of now.
  Reply again = post("/v1/jobs", R"({ "bench":"latency","model":"m", "type":"bench"})", key);
  EXPECT_EQ(again.status, 201);
  EXPECT_EQ(again.body, first.body);
  ASSERT_NE(again.headers.find("Idempotent-Replayed"), nullptr);
  EXPECT_EQ(first.headers.find("Idempotent-Replayed"), nullptr);
  EXPECT_EQ(post("/v1/jobs", R"({"type":"serve","model":"m"})", key).status, 422);
  EXPECT_EQ(post("/v1/jobs", kBody, {{"Idempotency-Key", ""}}).status, 400);
  EXPECT_EQ(post("/v1/jobs", kBody, {{"Idempotency-Key", std::string(256, 'k')}}).status, 400);
  EXPECT_EQ(get("/v1/jobs").body["data"].size(), 1u);
}

TEST_F(JobsApiTest, TheWriterReadsNothingToAnswer) {
  http::Headers key{{"Idempotency-Key", "k1"}};
  Reply first =
      post("/v1/jobs",
           R"({"type":"serve","model":"m","tp":2,"project":"a","priority":-3,"expires_after_seconds":60})",
           key);
  ASSERT_EQ(first.status, 201) << text(first);
  EXPECT_EQ(first.body, get("/v1/jobs/job-1").body) << "what is answered is what was written";
  ASSERT_EQ(post("/v1/jobs", kBody, {{"Idempotency-Key", "k2"}}).status, 201);
  EXPECT_EQ(post("/v1/jobs", kBody, {{"Idempotency-Key", "k2"}}).body["id"], "job-2");
  EXPECT_EQ(store_->num_reads_of_writer, 0);
}

TEST_F(JobsApiTest, AKeyInFlightIsAConflict) {
  http::Headers key{{"Idempotency-Key", "k"}};
  disk_.hold_syncs(true);
  std::atomic<int> statuses[2] = {0, 0};
  std::jthread one([&] { statuses[0] = post("/v1/jobs", kBody, key).status; });
  std::jthread two([&] { statuses[1] = post("/v1/jobs", kBody, key).status; });
  // Whichever came second; the first is not acknowledged before the disk has it.
  while (statuses[0] + statuses[1] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(statuses[0] + statuses[1], 409);
  disk_.hold_syncs(false);
  one.join();
  two.join();
  EXPECT_EQ(statuses[0] + statuses[1], 409 + 201);
}

TEST_F(JobsApiTest, ListsFilterAndPage) {
  for (int i = 0; i < 5; ++i) ASSERT_EQ(post("/v1/jobs", kBody).status, 201);
  change(2, JobState::kFailed);
  Reply page = get("/v1/jobs?limit=2");
  EXPECT_EQ(page.body["data"].size(), 2u);
  EXPECT_EQ(page.body["data"][0]["id"], "job-5");
  EXPECT_EQ(page.body["has_more"], true);
  page = get("/v1/jobs?limit=3&after=job-4");
  EXPECT_EQ(page.body["data"].size(), 3u);
  EXPECT_EQ(page.body["has_more"], false);
  EXPECT_EQ(get("/v1/jobs?state=FAILED,RUNNING").body["data"][0]["id"], "job-2");
  EXPECT_EQ(get("/v1/jobs?type=serve").body["data"].size(), 0u);
  for (const char* bad : {"limit=0", "limit=x", "limit=1001", "state=LOST", "type=shell", "after=7"}) {
    EXPECT_EQ(get(std::string("/v1/jobs?") + bad).status, 400) << bad;
  }
}

TEST_F(JobsApiTest, CancelSuspendResumeRetry) {
  ASSERT_EQ(post("/v1/jobs", kBody).status, 201);
  EXPECT_EQ(post("/v1/jobs/job-1/retry").status, 409);
  EXPECT_EQ(post("/v1/jobs/job-1/suspend").body["state"], "SUSPENDED");
  EXPECT_EQ(post("/v1/jobs/job-1/suspend").body["version"], 2) << "again is the same";
  EXPECT_EQ(post("/v1/jobs/job-1/resume").body["state"], "QUEUED");
  start(1);
  change(1, JobState::kRunning);
  Reply suspending = post("/v1/jobs/job-1/suspend");
  EXPECT_EQ(suspending.body["state"], "RUNNING");
  EXPECT_EQ(suspending.body["intent"], "suspend");
  EXPECT_EQ(post("/v1/jobs/job-1/resume").body["intent"], nullptr);
  EXPECT_EQ(post("/v1/jobs/job-1/cancel").body["state"], "CANCELLING");
  EXPECT_EQ(post("/v1/jobs/job-1/cancel").status, 200);
  EXPECT_EQ(post("/v1/jobs/job-1/suspend").status, 409);
  ASSERT_EQ(post("/v1/jobs", kBody).status, 201);
  EXPECT_EQ(post("/v1/jobs/job-2/cancel").body["state"], "CANCELLED");
  http::Headers key{{"Idempotency-Key", "again"}};
  Reply retried = post("/v1/jobs/job-2/retry", "", key);
  EXPECT_EQ(retried.status, 201) << text(retried);
  EXPECT_EQ(retried.body["retry_of"], "job-2");
  EXPECT_EQ(post("/v1/jobs/job-2/retry", "", key).body["id"], retried.body["id"]);
  EXPECT_EQ(post("/v1/jobs/job-99/cancel").status, 404);
}

TEST_F(JobsApiTest, IfMatchGuardsAChange) {
  ASSERT_EQ(post("/v1/jobs", kBody).status, 201);
  EXPECT_EQ(post("/v1/jobs/job-1/cancel", "", {{"If-Match", "\"2\""}}).status, 412);
  EXPECT_EQ(post("/v1/jobs/job-1/cancel", "", {{"If-Match", "\"1\""}}).status, 200);
}

TEST_F(JobsApiTest, LongPollAnswersTheChange) {
  ASSERT_EQ(post("/v1/jobs", kBody).status, 201);
  http::Headers seen{{"If-None-Match", "\"1\""}};
  EXPECT_EQ(get("/v1/jobs/job-1", seen).status, 304);
  EXPECT_EQ(get("/v1/jobs/job-1?wait=1", seen).status, 304);
  std::atomic<int> version = 0;
  std::jthread waiter([&] { version = get("/v1/jobs/job-1?wait=60", seen).body["version"].get<int>(); });
  std::jthread ended([&] { EXPECT_EQ(get("/v1/jobs/job-1?wait=60").body["state"], "CANCELLED"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto begin = Clock::now();
  EXPECT_EQ(post("/v1/jobs/job-1/suspend").status, 200);
  waiter.join();
  EXPECT_EQ(version, 2);
  EXPECT_EQ(post("/v1/jobs/job-1/cancel").status, 200);
  ended.join();
  EXPECT_LT(seconds_between(begin, Clock::now()), 40) << "a minute is what they would wait";
  EXPECT_EQ(get("/v1/jobs/job-1?wait=61").status, 400);
}

TEST_F(JobsApiTest, EventsStreamToTheEndAndResume) {
  ASSERT_EQ(post("/v1/jobs", kBody).status, 201);
  auto read = [&](http::Headers headers) {
    std::vector<std::string> ids;
    http::Client client;
    auto answer =
        client.stream_events({.url = server_->url() + "/v1/jobs/job-1/events", .headers = std::move(headers)},
                             Deadline::after(std::chrono::seconds(20)),
                             [&](const http::SseEvent& event) {
                               EXPECT_EQ(json::parse(event.data)["number"], std::stoi(event.id));
                               ids.push_back(event.id);
                               return true;
                             });
    EXPECT_TRUE(answer.ok()) << answer.status().to_string();
    return ids;
  };
  std::vector<std::string> live;
  std::jthread listener([&] { live = read({}); });
  start(1);
  change(1, JobState::kRunning);
  EXPECT_EQ(post("/v1/jobs/job-1/cancel").status, 200);
  ASSERT_TRUE(commit_
                  ->commit(1,
                           ChangeJob{.job = 1,
                                     .to = JobState::kCancelled,
                                     .attempt_change = AttemptChange{.state = AttemptState::kEnded}})
                  .ok());
  listener.join();
  EXPECT_EQ(live, (std::vector<std::string>{"1", "2", "3", "4", "5"}));
  EXPECT_EQ(read({{"Last-Event-ID", "3"}}), (std::vector<std::string>{"4", "5"}));
  EXPECT_EQ(get("/v1/jobs/job-1/events", {{"Last-Event-ID", "5"}}).status, 204);
  Reply list = get("/v1/jobs/job-1/events?stream=false&after=4");
  EXPECT_EQ(list.body["data"].size(), 1u);
  EXPECT_EQ(list.body["data"][0]["to"], "CANCELLED");
  EXPECT_EQ(get("/v1/jobs/job-1/attempts").body["data"][0]["state"], "ended");
}

TEST_F(JobsApiTest, EventsThatNobodyWasToldOfAreRefused) {
  ASSERT_EQ(post("/v1/jobs", kBody).status, 201);
  EXPECT_EQ(get("/v1/jobs/job-1/events?after=2").status, 400);
  EXPECT_EQ(get("/v1/jobs/job-1/events?after=2&stream=false").status, 400);
  EXPECT_EQ(get("/v1/jobs/job-1/events?after=1&stream=false").body["data"].size(), 0u);
  change(1, JobState::kFailed);
  EXPECT_EQ(get("/v1/jobs/job-1/events", {{"Last-Event-ID", "2"}}).status, 204);
  EXPECT_EQ(get("/v1/jobs/job-1/events", {{"Last-Event-ID", "3"}}).status, 400);
}

TEST_F(JobsApiTest, AReplicasKeyIsShownWhileItServes) {
  ASSERT_EQ(post("/v1/jobs", R"({"type":"serve","model":"m"})").status, 201);
  start(1);
  EXPECT_EQ(get("/v1/jobs/job-1/attempts").body["data"][0]["api_key"], nullptr);
  ChangeJob registered{.job = 1, .to = JobState::kRunning};
  registered.attempt_change = AttemptChange{.state = AttemptState::kRunning, .endpoint = "http://r"};
  ASSERT_TRUE(commit_->commit(1, registered).ok());
  Reply serving = get("/v1/jobs/job-1/attempts");
  EXPECT_EQ(serving.body["data"][0]["endpoint"], "http://r");
  EXPECT_EQ(serving.body["data"][0]["api_key"], secrets_.api_key(1, 1));
  EXPECT_EQ(*serving.headers.find("Cache-Control"), "no-store");
  ChangeJob ended{.job = 1, .to = JobState::kRecovering};
  ended.attempt_change = AttemptChange{.state = AttemptState::kEnded};
  ASSERT_TRUE(commit_->commit(1, ended).ok());
  EXPECT_EQ(get("/v1/jobs/job-1/attempts").body["data"][0]["api_key"], nullptr);
}

TEST_F(JobsApiTest, AnAttemptShowsHowFarItsMeasurementIs) {
  ASSERT_EQ(post("/v1/jobs", R"({"type":"bench","model":"m","bench":"latency"})").status, 201);
  start(1);
  EXPECT_EQ(get("/v1/jobs/job-1/attempts").body["data"][0]["progress"], nullptr);
  std::string folder = folder_.file("jobs/job-1/1");
  std::filesystem::create_directories(folder);
  std::ofstream(progress_file_of(folder)) << "7 40\n";
  json shown = get("/v1/jobs/job-1/attempts").body["data"][0]["progress"];
  EXPECT_EQ(shown, (json{{"done", 7}, {"total", 40}}));
}

TEST_F(JobsApiTest, LogsGoOnWhereTheyEnded) {
  ASSERT_EQ(post("/v1/jobs", kBody).status, 201);
  start(1);
  std::string folder = folder_.file("jobs/job-1/1");
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/log") << "one\ntwo\n";
  auto logs = [&](const std::string& query) {
    return http::request({.url = server_->url() + "/v1/jobs/job-1/logs" + query},
                         Deadline::after(std::chrono::seconds(20)))
        .value();
  };
  EXPECT_EQ(logs("").body, "one\ntwo\n");
  EXPECT_EQ(*logs("").headers.find("X-Next-Offset"), "8");
  EXPECT_EQ(logs("?offset=4").body, "two\n");
  EXPECT_EQ(logs("?offset=8").body, "");
  EXPECT_EQ(*logs("?offset=8").headers.find("X-Next-Offset"), "8");
  EXPECT_EQ(logs("?tail=4").body, "two\n");
  EXPECT_EQ(*logs("?tail=4").headers.find("X-Next-Offset"), "8");
  EXPECT_EQ(logs("?tail=99").body, "one\ntwo\n");
  for (const char* bad : {"?tail=0", "?tail=1048577", "?tail=1&offset=1"}) {
    EXPECT_EQ(logs(bad).status, 400) << bad;
  }
  EXPECT_EQ(logs("?attempt=2").status, 400);
  EXPECT_EQ(logs("?offset=-1").status, 400);
}

TEST(JobJson, BatchStatesOfOpenAI) {
  const std::pair<JobState, const char*> kMapping[] = {
      {JobState::kQueued, "validating"},
      {JobState::kStarting, "validating"},
      {JobState::kRunning, "in_progress"},
      {JobState::kSuspended, "in_progress"},
      {JobState::kRecovering, "in_progress"},
      {JobState::kCancelling, "cancelling"},
      {JobState::kFinalizing, "finalizing"},
      {JobState::kSucceeded, "completed"},
      {JobState::kFailed, "failed"},
      {JobState::kCancelled, "cancelled"},
      {JobState::kExpired, "expired"},
  };
  EXPECT_EQ(std::size(kMapping), static_cast<size_t>(kNumJobStates));
  for (const auto& [state, status] : kMapping) EXPECT_EQ(batch_status(state), status);
}

}  // namespace
}  // namespace llm_dist::cluster
