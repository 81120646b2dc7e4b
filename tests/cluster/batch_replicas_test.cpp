// A batch whose items go to several replicas: jobs that follow it.
#include <atomic>
#include <set>

#include "tests/cluster/batch_fixture.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using testing::answer;
using testing::failure;
using testing::FakeReplica;
using enum JobState;

constexpr const char* kWindow = "24h";

class BatchReplicasTest : public testing::BatchFixture {
 protected:
  static std::vector<std::string> prompts(int count) {
    std::vector<std::string> made;
    for (int i = 0; i < count; ++i) made.push_back("p" + std::to_string(i));
    return made;
  }
  std::vector<Job> replicas(const std::string& id) {
    return store_->batches().replicas(parse_batch_name(id).value()).value();
  }
  Job replica(const std::string& id) { return replicas(id).at(0); }
  int wish(const Job& job, const char* action) {
    return send("POST", "/v1/jobs/" + job_name(job.id) + "/" + action).status;
  }
};

TEST_F(BatchReplicasTest, ItemsGoToAllAtOnceAndEachOnce) {
  std::mutex mutex;
  std::set<FakeReplica*> used;
  machine_.behaviour = counting([&](FakeReplica& replica, const std::string& prompt) {
    {
      std::lock_guard lock(mutex);
      used.insert(&replica);
    }
    // No item is answered before each replica has one.
    auto all_have_one = [&] {
      std::lock_guard lock(mutex);
      return used.size() == 2;
    };
    while (!all_have_one()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::optional(answer(prompt));
  });
  std::string id = make_batch(prompts(40), kWindow, 2);
  EXPECT_EQ(send("GET", "/v1/jobs/" + job_name(replica(id).id)).body["replica_of"], id);
  EXPECT_EQ(replica(id).kind, JobKind::kServe);
  EXPECT_EQ(replica(id).expires_us, job(id).expires_us);
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"], (json{{"total", 40}, {"completed", 40}, {"failed", 0}}));
  EXPECT_EQ(lines(id, "output_file_id").size(), 40u);
  for (const std::string& prompt : prompts(40)) EXPECT_EQ(times_executed(prompt), 1) << prompt;
  EXPECT_EQ(store_->batches().progress_attempt(replica(id).id).value(), 1);
  run_until([&] { return replica(id).state == kCancelled; });
  EXPECT_EQ(replica(id).reason, "batch_ended");
}

// Both go on dying of the same item: the second does not get it before the first is known to have died, and
// what was in flight beside it runs alone afterwards.
TEST_F(BatchReplicasTest, OnlyWhatKillsTwoEnginesIsQuarantined) {
  std::vector<std::string> asked = prompts(24);
  asked[5] = "poison";
  machine_.behaviour =
      counting([this](FakeReplica& replica, const std::string& prompt) -> std::optional<http::Response> {
        if (prompt == "poison") {
          replica.die();
          return std::nullopt;
        }
        // Neighbours are in flight when it happens.
        while (std::stoi(prompt.substr(1)) > 5 && times_executed("poison") == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return answer(prompt);
      });
  std::string id = make_batch(asked, kWindow, 2);
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"], (json{{"total", 24}, {"completed", 23}, {"failed", 1}}));
  EXPECT_EQ(lines(id, "error_file_id")["id-5"]["error"]["code"], "quarantined");
  EXPECT_EQ(times_executed("poison"), 2);
  // The other replica may have done the rest before a third was launched.
  int num_deaths = 0;
  for (JobId each : {job(id).id, replica(id).id}) {
    for (const std::vector<Attempt> attempts = store_->attempts(each).value();
         const Attempt& attempt : attempts)
      num_deaths += attempt.reason == "process_exit";
  }
  EXPECT_EQ(num_deaths, 2);
}

TEST_F(BatchReplicasTest, OthersGoOnWhileItsOwnIsGone) {
  std::atomic<bool> answers = false;
  machine_.behaviour = counting([&](FakeReplica&, const std::string& prompt) {
    while (!answers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::optional(answer(prompt));
  });
  std::string id = make_batch(prompts(40), kWindow, 2);
  run_until([&] { return times_executed() == 2 * options_.concurrency; });
  // Its own dies, and nobody launches another.
  std::unique_ptr<Supervisor> nobody = std::move(supervisor_);
  machine_.replicas[std::stoul(store_->attempts(job(id).id).value().back().handle)]->die();
  ChangeJob died{.job = job(id).id, .attempt = 1, .to = kRecovering, .reason = "process_exit"};
  died.attempt_change = AttemptChange{.state = AttemptState::kEnded, .reason = "process_exit"};
  ASSERT_TRUE(commit_->commit(1, died).ok());
  answers = true;
  Deadline deadline = Deadline::after_seconds(60);
  while (job(id).state != kFinalizing && !deadline.expired()) {
    ASSERT_TRUE(runner_->tick().ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  supervisor_ = std::move(nobody);
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"], (json{{"total", 40}, {"completed", 40}, {"failed", 0}}));
  EXPECT_EQ(times_executed(), 40 + options_.concurrency) << "what was in flight, again";
  EXPECT_EQ(job(id).attempt, 1);
}

TEST_F(BatchReplicasTest, TheyAreSuspendedAndResumedWithIt) {
  std::atomic<bool> answers = false;
  machine_.behaviour = counting([&](FakeReplica&, const std::string& prompt) {
    return answers ? std::optional(answer(prompt)) : std::nullopt;
  });
  std::string id = make_batch(prompts(12), kWindow, 2);
  run_until([&] { return replica(id).state == kRunning && job(id).state == kRunning; });
  EXPECT_EQ(wish(replica(id), "suspend"), 409) << "not without its batch";
  ASSERT_EQ(wish(job(id), "suspend"), 200);
  run_until([&] { return replica(id).state == kSuspended && job(id).state == kSuspended; });
  for (int i = 0; i < 5; ++i) tick();
  EXPECT_EQ(replica(id).state, kSuspended);
  EXPECT_EQ(wish(replica(id), "resume"), 409);
  answers = true;
  ASSERT_EQ(wish(job(id), "resume"), 200);
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"]["completed"], 12);
}

TEST_F(BatchReplicasTest, TheyEndWhenItIsCancelledInAnyState) {
  machine_.behaviour = [](FakeReplica&, const std::string&) { return std::nullopt; };
  std::string queued = make_batch(prompts(2), kWindow, 3);
  ASSERT_EQ(send("POST", "/v1/batches/" + queued + "/cancel").status, 200);
  run_to_end(queued);
  ASSERT_EQ(replicas(queued).size(), 2u);
  for (int i : {0, 1}) run_until([&] { return replicas(queued)[i].state == kCancelled; });
  std::string running = make_batch(prompts(20), kWindow, 2);
  run_until([&] { return replica(running).state == kRunning; });
  ASSERT_EQ(send("POST", "/v1/batches/" + running + "/cancel").status, 200);
  run_to_end(running);
  run_until([&] { return is_terminal(replica(running).state); });
  for (auto& each : machine_.replicas) EXPECT_FALSE(each->alive());
}

// It need not start at all, and what is behind it may be somebody's only replica.
TEST_F(BatchReplicasTest, OneThatFindsNoRoomHoldsUpNobody) {
  std::atomic<bool> answers = false;
  machine_.behaviour = counting([&](FakeReplica&, const std::string& prompt) {
    return answers ? std::optional(answer(prompt)) : std::nullopt;
  });
  std::string id = make_batch(prompts(8), kWindow, 2);
  JobId first = parse_job_name(
                    send("POST", "/v1/jobs", R"({"type":"serve","model":"m"})").body["id"].get<std::string>())
                    .value();
  run_until([&] { return job(id).state == kRunning && replica(id).state == kRunning; });
  // The one that ran ends for good: its slot is for who waits, not for a replica that a batch has more.
  std::string wide = make_batch(prompts(8), kWindow, 2);
  ASSERT_EQ(wish(replica(id), "cancel"), 200);
  run_until([&] { return store_->job(first).value().state == kRunning; });
  for (int i = 0; i < 5; ++i) tick();
  EXPECT_EQ(job(wide).state, kQueued);
  answers = true;
  ASSERT_EQ(wish(job(id), "cancel"), 200);
  run_until([&] { return job(wide).state == kRunning; });
  EXPECT_EQ(replica(wide).state, kQueued) << "no room, and nobody needs it";
  run_to_end(wide);
  EXPECT_EQ(batch(wide)["request_counts"]["completed"], 8);
  EXPECT_EQ(replica(wide).state, kCancelled);
}

TEST_F(BatchReplicasTest, CoordinatorsAndReplicasThatEndAgainAndAgain) {
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::optional(answer(prompt));
  });
  options_.max_deaths = 1000;  // what dies here is chosen by the test, not by an item
  restart();
  std::string id = make_batch(prompts(80), kWindow, 2);
  for (int life = 1; !stored(id).closed && life < 200; ++life) {
    for (int i = 0; i < life % 5 && !stored(id).closed; ++i) {
      tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (life % 3 == 0 && !machine_.replicas.empty())
      machine_.replicas[life % machine_.replicas.size()]->die();
    if (life % 2 == 0) restart();
  }
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"], (json{{"total", 80}, {"completed", 80}, {"failed", 0}}));
  EXPECT_EQ(lines(id, "output_file_id").size(), 80u);
  run_until([&] { return is_terminal(replica(id).state); });
  for (auto& each : machine_.replicas) EXPECT_FALSE(each->alive());
}

TEST_F(BatchReplicasTest, HowManyIsChecked) {
  std::string file = upload(testing::item_line("a", "p")).body["id"];
  json request = {{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", kWindow}};
  for (const json& wrong : {json(0), json(65), json("2"), json(1.5)}) {
    request["replicas"] = wrong;
    Reply reply = send("POST", "/v1/batches", request.dump());
    EXPECT_EQ(reply.status, 400) << wrong;
    EXPECT_EQ(reply.body["error"]["param"], "replicas");
  }
  request["replicas"] = 1;
  EXPECT_TRUE(replicas(send("POST", "/v1/batches", request.dump()).body["id"]).empty());
}

}  // namespace
}  // namespace llm_dist::cluster
