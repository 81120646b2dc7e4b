// The dashboard's files, and the loads of replicas that it shows.
#include "cluster/api/dashboard.h"

#include <regex.h>

#include <fstream>
#include <set>
#include <sstream>

#include "cluster/replica_loads.h"
#include "tests/cluster/batch_fixture.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;

std::string_view content_of(std::string_view path) {
  for (const DashboardFile& file : dashboard_files()) {
    if (file.path == path) return file.content;
  }
  return "";
}

// What stands in `group` of each match of a POSIX extended expression. (gcc 12 warns of std::regex under
// ASan.)
std::set<std::string> matches(std::string_view text, const char* pattern, size_t group = 1) {
  std::set<std::string> found;
  regex_t regex;
  EXPECT_EQ(regcomp(&regex, pattern, REG_EXTENDED), 0) << pattern;
  const std::string copy(text);
  regmatch_t at[3];
  for (size_t begin = 0; regexec(&regex, copy.c_str() + begin, 3, at, 0) == 0;) {
    const auto from = static_cast<size_t>(at[group].rm_so);
    found.insert(copy.substr(begin + from, static_cast<size_t>(at[group].rm_eo) - from));
    begin += static_cast<size_t>(at[0].rm_eo);
  }
  regfree(&regex);
  return found;
}

TEST(Dashboard, IsWhatLiesInTheSources) {
  EXPECT_EQ(dashboard_files().size(), 3u);
  for (const auto& [path, file] : {std::pair("/dashboard", "html"),
                                   std::pair("/dashboard/dashboard.css", "css"),
                                   std::pair("/dashboard/dashboard.js", "js")}) {
    std::ifstream source(std::string(LLM_DIST_SOURCE_DIR "/cluster/dashboard/dashboard.") + file);
    std::stringstream text;
    text << source.rdbuf();
    EXPECT_TRUE(content_of(path) == text.str()) << path;
    EXPECT_TRUE(is_dashboard_path(path));
  }
  EXPECT_TRUE(is_dashboard_path("/"));
  EXPECT_FALSE(is_dashboard_path("/dashboard/"));
}

TEST(Dashboard, AsksOnlyWhatTheApiHas) {
  std::ifstream file(LLM_DIST_SOURCE_DIR "/docs/coordinator-openapi.json");
  json paths = json::parse(file).at("paths");
  std::set<std::string> asked = matches(content_of("/dashboard/dashboard.js"), "'(/[^'[:space:]]+)'");
  EXPECT_GT(asked.size(), 5u);
  EXPECT_TRUE(asked.contains("/v1/jobs/{id}/cancel"));
  asked.merge(matches(content_of("/dashboard"), "(src|href)=\"(/[^\"]*)\"", 2));
  for (const std::string& path : asked) EXPECT_TRUE(paths.contains(path)) << path;
}

// What the policy forbids would only show in a browser.
TEST(Dashboard, HasNothingInlineNorFromElsewhere) {
  std::string_view page = content_of("/dashboard");
  EXPECT_TRUE(matches(page, "( style=| on[a-z]+=|<style|<script>|https?:)").empty());
  std::string_view script = content_of("/dashboard/dashboard.js");
  EXPECT_TRUE(
      matches(script, "(innerHTML|outerHTML|insertAdjacentHTML|document.write|eval\\(|style:)").empty());
  EXPECT_TRUE(matches(content_of("/dashboard/dashboard.css"), "(url\\(|@import)").empty());
  for (const std::string& id : matches(script, "(byId|draw)\\('([a-z-]+)'", 2)) {
    EXPECT_NE(page.find("id=\"" + id + "\""), std::string_view::npos) << id;
  }
}

TEST(Dashboard, IsServedWithItsHeaders) {
  http::Router router;
  add_dashboard_routes(router);
  auto server = std::move(http::Server::create({}, [&](auto request, auto writer) {
                  router(std::move(request), std::move(writer));
                })).value();
  auto get = [&](const std::string& path) {
    return http::request({.url = server->url() + path}, Deadline::after_seconds(60)).value();
  };
  EXPECT_EQ(get("/").status, 307);
  EXPECT_EQ(*get("/").headers.find("Location"), "/dashboard");
  for (const DashboardFile& file : dashboard_files()) {
    http::Response got = get(std::string(file.path));
    EXPECT_EQ(got.status, 200);
    EXPECT_TRUE(got.body == file.content);
    EXPECT_EQ(*got.headers.find("Content-Type"), file.content_type);
    EXPECT_EQ(*got.headers.find("X-Content-Type-Options"), "nosniff");
    std::string policy = *got.headers.find("Content-Security-Policy");
    EXPECT_EQ(policy.find("default-src 'none'; script-src 'self';"), 0u) << policy;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
    EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos);
  }
}

TEST(ReplicaLoads, SumAMetricOverItsLabels) {
  const char* text =
      "# HELP a_total Something\n# TYPE a_total counter\na_total{x=\"1\"} 2\na_total{x=\"2 3\"} 1.5e3\n"
      "a_total_more 7\nb 4\nbad x\nlast 1";
  EXPECT_EQ(metric_sum(text, "a_total"), 1502);
  EXPECT_EQ(metric_sum(text, "b"), 4);
  EXPECT_EQ(metric_sum(text, "last"), 1);
  EXPECT_EQ(metric_sum(text, "bad"), std::nullopt);
  EXPECT_EQ(metric_sum(text, "a"), std::nullopt);
  EXPECT_EQ(metric_sum("", "a"), std::nullopt);
}

class ReplicaLoadsTest : public testing::BatchFixture {
 protected:
  void SetUp() override {
    BatchFixture::SetUp();
    replica_ = std::move(http::Server::create({}, [this](const http::Request& request, auto writer) {
                 key_ = *request.headers.find("Authorization");
                 writer->send({.status = status_, .content_type = "text/plain", .body = metrics_});
               })).value();
    Reply made = send("POST", "/v1/jobs", R"({"type":"serve","model":"m","tp":2})");
    ASSERT_EQ(made.status, 201);
    ASSERT_TRUE(supervisor_->tick().ok());
    ChangeJob registered{.job = 1, .to = JobState::kRunning, .reason = "registered"};
    registered.attempt_change = AttemptChange{.state = AttemptState::kRunning, .endpoint = replica_->url()};
    ASSERT_TRUE(commit_->commit(1, registered).ok());
    sampled_ = std::make_unique<ReplicaLoads>(ReplicaLoads::Parts{.store = *store_,
                                                                  .secrets = secrets_,
                                                                  .now_us = [this] { return now_us_; },
                                                                  .timeout = std::chrono::seconds(60),
                                                                  .max_history = 3});
  }
  void TearDown() override {
    replica_.reset();
    BatchFixture::TearDown();
  }
  void sample(int64_t at_us, int generated, int prompt) {
    now_us_ = at_us;
    metrics_ = "llm_dist_generation_tokens_total " + std::to_string(generated) +
               "\nllm_dist_prompt_tokens_total " + std::to_string(prompt) +
               "\nllm_dist_kv_cache_usage_perc 0.25\nllm_dist_num_requests_running 2\n";
    ASSERT_TRUE(sampled_->sample().ok());
  }

  int64_t now_us_ = 0;
  int status_ = 200;
  std::string metrics_;
  std::string key_;
  std::unique_ptr<http::Server> replica_;
  std::unique_ptr<ReplicaLoads> sampled_;
};

TEST_F(ReplicaLoadsTest, AreWhatTheReplicaSaysAndItsRates) {
  EXPECT_EQ(sampled_->of(1, 1), std::nullopt);
  sample(1'000'000, 100, 10);
  EXPECT_EQ(key_, "Bearer " + secrets_.api_key(1, 1));
  EXPECT_EQ(sampled_->of(1, 1)->kv_cache_usage, 0.25);
  EXPECT_EQ(sampled_->of(1, 1)->requests_running, 2);
  EXPECT_EQ(sampled_->of(1, 1)->generated_per_second, std::nullopt) << "of one sample there is no rate";
  sample(3'000'000, 160, 20);
  EXPECT_EQ(sampled_->of(1, 1)->generated_per_second, 30);
  EXPECT_EQ(sampled_->history().back().generated_per_second, 30);
  EXPECT_EQ(sampled_->history().back().prompt_per_second, 5);
  sample(3'000'000, 170, 20);
  EXPECT_EQ(sampled_->history().back().generated_per_second, 0) << "no time has passed";
  sample(5'000'000, 10, 0);
  EXPECT_EQ(sampled_->of(1, 1)->generated_per_second, 0) << "a counter that began anew is no negative rate";
  EXPECT_EQ(sampled_->history().size(), 3u);
  EXPECT_EQ(sampled_->of(1, 2), std::nullopt);
}

TEST_F(ReplicaLoadsTest, WhatDoesNotAnswerHasNone) {
  sample(1'000'000, 100, 10);
  status_ = 500;
  sample(2'000'000, 200, 10);
  EXPECT_EQ(sampled_->of(1, 1), std::nullopt);
  EXPECT_EQ(sampled_->history().back().generated_per_second, 0);
  replica_.reset();
  ASSERT_TRUE(sampled_->sample().ok());
  EXPECT_EQ(sampled_->of(1, 1), std::nullopt);
}

TEST_F(ReplicaLoadsTest, AreShownWithTheirSlotsUntilTheyHaveEnded) {
  auto used = [&] { return send("GET", "/v1/overview").body["slots"]["used"].get<int>(); };
  EXPECT_EQ(used(), 2);
  for (JobState state : {JobState::kFinalizing, JobState::kSucceeded}) {
    ChangeJob change{.job = 1, .to = state};
    if (state == JobState::kSucceeded) change.attempt_change = AttemptChange{.state = AttemptState::kEnded};
    ASSERT_TRUE(commit_->commit(1, change).ok());
    const bool holds = state == JobState::kFinalizing;
    EXPECT_EQ(used(), holds ? 2 : 0) << to_string(state);
    EXPECT_EQ(send("GET", "/v1/overview").body["replicas"].size(), holds ? 1u : 0u);
  }
}

}  // namespace
}  // namespace llm_dist::cluster
