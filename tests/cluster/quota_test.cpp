// Quotas: who may start as a pure function, then what the supervisor and the API make of them.
#include "cluster/quota.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "tests/cluster/batch_fixture.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using testing::FakeReplica;
using enum JobState;
using enum Verdict;

SlotUse slots(int count) { return {.slots = Slots(count)}; }
void add(SlotUse& use, const std::string& project, int ranks) {
  use.add(project, use.slots.choose(ranks).value());
}

TEST(QueueTest, NobodyOvertakesWhoWaitsForSlots) {
  SlotUse use = slots(4);
  add(use, "a", 2);
  Queue queue(use);
  EXPECT_EQ(queue.next({"a", 1}, {}).verdict, kStart);
  EXPECT_EQ(queue.next({"b", 2}, {}).verdict, kWaitForSlots);
  EXPECT_EQ(queue.next({"c", 1}, {}).verdict, kWaitForSlots) << "there is a slot, and b waits for two";
  EXPECT_TRUE(queue.is_held_up());
}

TEST(QueueTest, WhoMayBeOvertakenIs) {
  SlotUse use = slots(4);
  add(use, "a", 3);
  Queue queue(use);
  EXPECT_EQ(queue.next({"a", 2, true}, {}).verdict, kWaitForSlots);
  EXPECT_FALSE(queue.is_held_up());
  EXPECT_EQ(queue.next({"a", 1}, {}).verdict, kStart);
}

TEST(QueueTest, AQuotaHoldsUpItsOwnProjectOnly) {
  const ProjectQuota three{.max_slots = 3};
  SlotUse use = slots(8);
  add(use, "a", 2);
  Queue queue(use);
  EXPECT_EQ(queue.next({"a", 2}, three).verdict, kWaitForQuota);
  EXPECT_EQ(queue.next({"a", 1}, three).verdict, kWaitForQuota)
      << "nobody overtakes within the project either";
  EXPECT_EQ(queue.projects_held_up(), std::vector<std::string>{"a"});
  EXPECT_EQ(queue.next({"b", 2}, three).verdict, kStart);
  EXPECT_EQ(queue.next({"b", 1}, three).verdict, kStart);
  EXPECT_EQ(queue.next({"b", 1}, three).verdict, kWaitForQuota) << "what started counts";
  EXPECT_EQ(queue.next({"c", 3}, {}).verdict, kStart);
  EXPECT_FALSE(queue.is_held_up());
}

TEST(QueueTest, RunningJobsAreCounted) {
  const ProjectQuota two{.max_running_jobs = 2};
  Queue queue(slots(8));
  EXPECT_EQ(queue.next({"a", 1}, two).verdict, kStart);
  EXPECT_EQ(queue.next({"a", 3}, two).verdict, kStart);
  EXPECT_EQ(queue.next({"a", 1}, two).verdict, kWaitForQuota);
}

TEST(QueueTest, WhatCanNeverStartHoldsUpNobody) {
  Queue queue(slots(4));
  EXPECT_EQ(queue.next({"a", 5}, {}).verdict, kNever);
  EXPECT_EQ(queue.next({"a", 3}, {.max_slots = 2}).verdict, kNever);
  EXPECT_EQ(queue.next({"a", 4}, {}).verdict, kStart);
  EXPECT_EQ(queue.next({"a", 1}, {}).verdict, kWaitForSlots);
  EXPECT_EQ(queue.next({"a", 9}, {}).verdict, kNever) << "also behind one that waits";
}

// Random projects, sizes, quotas and ends: limits hold at every moment, and everybody starts in the end.
TEST(QueueTest, LimitsHoldAndNobodyStarves) {
  std::mt19937 random(7);
  auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)) + 1; };
  for (int round = 0; round < 50; ++round) {
    const int num_slots = up_to(6) + 1;
    std::map<std::string, ProjectQuota> quotas = {
        {"a", {.max_running_jobs = up_to(3)}}, {"b", {.max_slots = up_to(num_slots)}}, {"c", {}}};
    std::vector<Candidate> waiting;
    for (int i = 0; i < 60; ++i) {
      std::string project(1, static_cast<char>('a' + up_to(3) - 1));
      int most = quotas[project].max_slots == 0 ? num_slots : quotas[project].max_slots;
      waiting.push_back({project, up_to(most)});
    }
    struct Running {
      Candidate candidate;
      std::vector<int> slots;
    };
    std::vector<Running> running;
    for (int step = 0; !waiting.empty(); ++step) {
      ASSERT_LT(step, 200) << "somebody starves";
      // Somebody ends, and what is new comes behind.
      if (!running.empty()) running.erase(running.begin() + up_to(static_cast<int>(running.size())) - 1);
      SlotUse use = slots(num_slots);
      for (const Running& each : running) use.add(each.candidate.project, each.slots);
      Queue queue(use);
      std::erase_if(waiting, [&](const Candidate& each) {
        Turn turn = queue.next(each, quotas[each.project]);
        if (turn.verdict != kStart) return false;
        EXPECT_EQ(std::ssize(turn.slots), each.ranks);
        running.push_back({each, turn.slots});
        use.add(each.project, turn.slots);
        return true;
      });
      int num_ranks = 0;
      for (const Running& each : running) num_ranks += each.candidate.ranks;
      ASSERT_LE(num_ranks, num_slots);
      ASSERT_EQ(use.slots.num_used(), num_ranks) << "two share a slot";
      for (const auto& [project, quota] : quotas) {
        const SlotUse::Project& held = use.projects[project];
        ASSERT_TRUE(quota.max_running_jobs == 0 || held.num_jobs <= quota.max_running_jobs) << held.num_jobs;
        ASSERT_TRUE(quota.max_slots == 0 || held.num_slots <= quota.max_slots) << held.num_slots;
      }
    }
  }
}

class QuotaTest : public testing::BatchFixture {
 protected:
  void SetUp() override {
    machine_.behaviour = [](FakeReplica&, const std::string&) { return std::nullopt; };
    BatchFixture::SetUp();
  }
  void set_quotas(std::map<std::string, ProjectQuota> quotas) {
    catalogue_ = Catalogue({{"m", {.path = "/m.gguf", .max_ranks = 4}}}, std::move(quotas));
  }
  Reply submit(const std::string& project, int tp = 1, http::Headers headers = {}) {
    json body = {{"type", "serve"}, {"model", "m"}, {"project", project}, {"tp", tp}};
    return send("POST", "/v1/jobs", body.dump(), std::move(headers));
  }
  JobState state(const Reply& made) {
    return store_->job(parse_job_name(made.body["id"].get<std::string>()).value()).value().state;
  }
  void end(const Reply& made) {
    ASSERT_EQ(send("POST", "/v1/jobs/" + made.body["id"].get<std::string>() + "/cancel").status, 200);
    run_until([&] { return state(made) == kCancelled; });
  }
};

TEST_F(QuotaTest, AProjectAtItsLimitLeavesTheSlotsToOthers) {
  set_quotas({{"a", {.max_running_jobs = 1}}});
  Reply first = submit("a");
  std::vector<Reply> behind;
  // More than the supervisor looks at in one go.
  for (int i = 0; i < 70; ++i) behind.push_back(submit("a"));
  Reply other = submit("b");
  run_until([&] { return state(first) == kRunning && state(other) == kRunning; });
  for (int i = 0; i < 3; ++i) tick();
  EXPECT_EQ(state(behind[0]), kQueued);
  std::vector<ProjectUsage> usage = store_->projects().value();
  ASSERT_EQ(usage.size(), 2u);
  EXPECT_EQ(usage[0].project, "a");
  EXPECT_EQ(usage[0].num_queued, 70);
  EXPECT_EQ(usage[0].num_running, 1);
  EXPECT_EQ(usage[1].num_slots, 1);
  end(first);
  run_until([&] { return state(behind[0]) == kRunning; });
  EXPECT_EQ(state(behind[1]), kQueued);
}

TEST_F(QuotaTest, TooManyThatWaitAreRefusedAndToldWhatToDo) {
  set_quotas({{"*", {.max_queued_jobs = 2}}, {"vip", {}}});
  EXPECT_EQ(submit("a", 1, {{"Idempotency-Key", "k"}}).status, 201);
  EXPECT_EQ(submit("a").status, 201);
  Reply refused = submit("a");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.body["error"]["code"], "quota_exceeded");
  EXPECT_NE(refused.headers.find("Retry-After"), nullptr);
  EXPECT_NE(refused.body["error"]["message"].get<std::string>().find("GET /v1/jobs?project=a&state=QUEUED"),
            std::string::npos);
  EXPECT_EQ(submit("a", 1, {{"Idempotency-Key", "k"}}).status, 201) << "it was made already";
  EXPECT_EQ(submit("b").status, 201) << "each project has its own";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(submit("vip").status, 201);
  EXPECT_EQ(store_->jobs({.project = "a"}).value().size(), 2u);
  // A key that was refused is not used up.
  EXPECT_EQ(submit("a", 1, {{"Idempotency-Key", "later"}}).status, 429);
  ASSERT_EQ(send("POST", "/v1/jobs/job-1/cancel").status, 200);
  EXPECT_EQ(submit("a", 1, {{"Idempotency-Key", "later"}}).status, 201);
}

TEST_F(QuotaTest, SubmissionsAtOnceDoNotOvershoot) {
  set_quotas({{"*", {.max_queued_jobs = 5}}});
  std::atomic<int> made = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 12; ++i) clients.emplace_back([&] { made += submit("a").status == 201; });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(made, 5);
  EXPECT_EQ(store_->jobs({}).value().size(), 5u);
}

TEST_F(QuotaTest, WhatCouldNeverStartIsRefusedAtOnce) {
  set_quotas({{"a", {.max_queued_jobs = 2, .max_slots = 1}}});
  Reply refused = submit("a", 2);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.body["error"]["code"], "quota_too_small");
  EXPECT_EQ(refused.body["error"]["param"], "tp");
  std::string file = upload(testing::item_line("x", "p")).body["id"];
  json batch = {{"input_file_id", file},
                {"endpoint", "/v1/completions"},
                {"completion_window", "24h"},
                {"project", "a"},
                {"replicas", 3}};
  refused = send("POST", "/v1/batches", batch.dump());
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.body["error"]["param"], "replicas");
  batch["replicas"] = 2;
  EXPECT_EQ(send("POST", "/v1/batches", batch.dump()).status, 200);
  refused = send("POST", "/v1/batches", batch.dump());
  EXPECT_EQ(refused.status, 429) << "a batch waits as as many jobs as it has replicas";
  EXPECT_EQ(store_->jobs({}).value().size(), 2u);
}

TEST_F(QuotaTest, AQuotaThatBecameTooSmallFailsWhatWaits) {
  Reply made = submit("a", 2);
  set_quotas({{"a", {.max_slots = 1}}});
  tick();
  EXPECT_EQ(state(made), kFailed);
  Job job = store_->job(1).value();
  EXPECT_EQ(job.reason, "needs_more_slots");
  EXPECT_NE(job.message.find("project 'a' may have 1 slots"), std::string::npos) << job.message;
}

// The same key and request: the same answer, whatever has become of what it named.
TEST_F(QuotaTest, AnAnswerOutlivesWhatItWasAbout) {
  const http::Headers key{{"Idempotency-Key", "k"}};
  std::string file = upload(testing::item_line("x", "p")).body["id"];
  json body = {{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
  Reply made = send("POST", "/v1/batches", body.dump(), key);
  ASSERT_EQ(made.status, 200);
  Reply job = submit("a", 1, key);
  std::string id = made.body["id"];
  ASSERT_EQ(send("POST", "/v1/batches/" + id + "/cancel").status, 200);
  run_to_end(id);
  ASSERT_EQ(send("DELETE", "/v1/files/" + file).status, 200);
  Reply again = send("POST", "/v1/batches", body.dump(2), key);
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.text, made.text);
  EXPECT_NE(again.headers.find("Idempotent-Replayed"), nullptr);
  EXPECT_EQ(send("POST", "/v1/batches", body.dump()).status, 404) << "without the key it is another request";
  body["metadata"] = {{"k", "v"}};
  EXPECT_EQ(send("POST", "/v1/batches", body.dump(), key).status, 404) << "another request";
  catalogue_ = Catalogue({{"n", {.path = "/n.gguf"}}});
  again = submit("a", 1, key);
  EXPECT_EQ(again.status, 201);
  EXPECT_EQ(again.text, job.text);
  EXPECT_EQ(submit("a", 2, key).status, 404);
  set_quotas({{"a", {.max_running_jobs = 1}}});
  EXPECT_EQ(submit("a", 1, key).text, job.text);
}

TEST(QuotaFileTest, IsReadAndChecked) {
  testing::TemporaryFolder folder;
  auto read = [&](const std::string& projects) {
    std::ofstream(folder.file("c.json"))
        << R"({"models":{"m":{"path":"m.gguf"}},"projects":)" << projects << "}";
    return Catalogue::read(folder.file("c.json"));
  };
  Result<Catalogue> good =
      read(R"({"a":{"max_running_jobs":1,"max_queued_jobs":2,"max_slots":3},"*":{"max_slots":9}})");
  ASSERT_TRUE(good.ok()) << good.status().to_string();
  EXPECT_EQ(good.value().quota("a").max_running_jobs, 1);
  EXPECT_EQ(good.value().quota("a").max_queued_jobs, 2);
  EXPECT_EQ(good.value().quota("a").max_slots, 3);
  EXPECT_EQ(good.value().quota("other").max_slots, 9);
  EXPECT_EQ(good.value().quota("other").max_queued_jobs, 0);
  for (const char* wrong : {R"({"a":{"max_slots":0}})",
                            R"({"a":{"max_slots":"3"}})",
                            R"({"a":{"max_slot":3}})",
                            R"({"a":3})",
                            "[]"}) {
    EXPECT_EQ(read(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  }
  EXPECT_NE(read(R"({"a":{"max_slot":3}})").status().message().find("did you mean 'max_slots'"),
            std::string::npos);
}

}  // namespace
}  // namespace llm_dist::cluster
