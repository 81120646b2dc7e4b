// How replicas register, on a store that may fail to be read.
#include "cluster/api/replicas_api.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cluster/api/api_reply.h"
#include "cluster/store/sqlite_store.h"
#include "src/http/client.h"
#include "src/http/digest.h"
#include "src/http/server.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;

class FailingStore : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Result<Job> job(JobId id) override { return fails_jobs ? failure() : ForwardingStore::job(id); }
  Result<std::vector<Attempt>> attempts(JobId id) override {
    return fails_attempts ? failure() : ForwardingStore::attempts(id);
  }
  std::atomic<bool> fails_jobs = false;
  std::atomic<bool> fails_attempts = false;

 private:
  static Status failure() { return unavailable("the store: disk I/O error"); }
};

class ReplicasApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    api_.add_routes(router_);
    server_ = std::move(http::Server::create({}, [this](auto request, auto writer) {
                router_(std::move(request), std::move(writer));
              })).value();
    SubmitJob serve{.project = "p", .kind = JobKind::kServe, .spec = R"({"model":"m"})"};
    ASSERT_TRUE(commit_.commit(1, std::move(serve)).ok());
    ASSERT_TRUE(
        commit_.commit(1, StartAttempt{.job = 1, .secret_hash = http::sha256_hex("secret"), .slots = 1})
            .ok());
  }
  void TearDown() override {
    server_.reset();
    workers_.stop();
  }
  int enrol(const char* job = "job-1", const char* secret = "secret") {
    json body = {{"job", job}, {"attempt", 1}, {"secret", secret}, {"endpoint", "http://127.0.0.1:1"}};
    auto answer =
        http::request({.method = "POST", .url = server_->url() + "/v1/replicas", .body = body.dump()},
                      Deadline::after_seconds(60));
    return answer.ok() ? answer->status : 0;
  }

  testing::TemporaryFolder folder_;
  FailingStore store_{open_sqlite_store({.path = folder_.file("store")}).value()};
  Workers workers_{1};
  GroupCommit commit_{store_, {}};
  ReplicasApi api_{{.store = store_, .commit = commit_, .workers = workers_}};
  http::Router router_{render_http_error};
  std::unique_ptr<http::Server> server_;
};

TEST_F(ReplicasApiTest, WhoLacksTheSecretIsRefused) {
  EXPECT_EQ(enrol("job-1", "guessed"), 403);
  EXPECT_EQ(enrol("job-2"), 403);
  EXPECT_EQ(enrol(), 200);
}

TEST_F(ReplicasApiTest, WhatCannotBeReadIsNoRefusal) {
  for (auto* fails : {&store_.fails_jobs, &store_.fails_attempts}) {
    *fails = true;
    EXPECT_EQ(enrol(), 503);
    *fails = false;
  }
  EXPECT_EQ(enrol(), 200);
}

}  // namespace
}  // namespace llm_dist::cluster
