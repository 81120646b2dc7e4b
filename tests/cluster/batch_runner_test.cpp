// Batches from submission to their files, on replicas that answer, refuse, hang and die.
#include "cluster/batch_runner.h"

#include <atomic>
#include <filesystem>
#include <fstream>

#include "cluster/batch_output.h"
#include "tests/cluster/batch_fixture.h"
#include "tests/cluster/file_text.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;
using testing::answer;
using testing::failure;
using testing::FakeReplica;
using enum JobState;

class BatchRunnerTest : public testing::BatchFixture {
 protected:
  static std::vector<std::string> prompts(int count) {
    std::vector<std::string> made;
    for (int i = 0; i < count; ++i) made.push_back("p" + std::to_string(i));
    return made;
  }
  // Of the same length, with as many lines, and one of them is no JSON any more.
  void damage(const std::string& id, const std::string& custom_id) {
    const std::string content = store_->batches().file(stored(id).input_file).value().content;
    std::string text = testing::text_of(contents_, content).value();
    text[text.find('"' + custom_id + '"')] = '#';
    std::ofstream(input_path(id), std::ios::binary) << text;
  }
  void expect_input_lost(const std::string& id) {
    EXPECT_EQ(batch(id)["status"], "failed");
    EXPECT_EQ(job(id).reason, "input_lost");
  }
};

TEST_F(BatchRunnerTest, EveryItemIsAnsweredInOrder) {
  std::vector<std::string> asked = prompts(30);
  asked[7] = "bad";
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    return std::optional(prompt == "bad" ? failure(400, "context_length_exceeded") : answer(prompt));
  });
  std::string id = make_batch(asked);
  EXPECT_EQ(batch(id)["status"], "validating");
  EXPECT_EQ(batch(id)["request_counts"]["total"], 30);
  run_to_end(id);
  json end = batch(id);
  EXPECT_EQ(end["status"], "completed") << end;
  EXPECT_EQ(end["request_counts"], (json{{"total", 30}, {"completed", 29}, {"failed", 1}}));
  for (const char* time : {"in_progress_at", "finalizing_at", "completed_at"})
    EXPECT_TRUE(end[time].is_number());
  for (const char* time : {"failed_at", "expired_at", "cancelled_at"}) EXPECT_TRUE(end[time].is_null());
  auto output = lines(id, "output_file_id");
  EXPECT_EQ(output.size(), 29u);
  EXPECT_EQ(output["id-3"]["response"]["status_code"], 200);
  EXPECT_EQ(output["id-3"]["response"]["request_id"], "req-p3");
  EXPECT_EQ(output["id-3"]["response"]["body"]["choices"][0]["text"], "p3");
  EXPECT_TRUE(output["id-3"]["error"].is_null());
  auto errors = lines(id, "error_file_id");
  EXPECT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors["id-7"]["response"]["status_code"], 400);
  for (const std::string& prompt : asked) EXPECT_EQ(times_executed(prompt), 1) << prompt;
  // In the input's order, whichever came back first.
  std::string text = send("GET", "/v1/files/" + end["output_file_id"].get<std::string>() + "/content").text;
  EXPECT_LT(text.find("\"id-2\""), text.find("\"id-10\""));
  // Its replica is gone, and its slots with it.
  EXPECT_FALSE(machine_.last().alive());
  EXPECT_EQ(job(id).state, kSucceeded);
}

TEST_F(BatchRunnerTest, AReplicaThatTurnsItemsAwayCostsThemNothing) {
  options_.max_tries = 1;
  restart();
  std::atomic<int> refusals = 0;
  machine_.behaviour = counting([&](FakeReplica&, const std::string& prompt) {
    constexpr int kStatuses[] = {503, 429, 502, 504};
    int nth = refusals++;
    return std::optional(nth < 40 ? failure(kStatuses[nth % 4], "queue_full") : answer(prompt));
  });
  std::string id = make_batch(prompts(10));
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"]["completed"], 10);
  EXPECT_EQ(job(id).attempt, 1);
}

TEST_F(BatchRunnerTest, AnItemsOwnFailureIsTriedThreeTimes) {
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    return std::optional(prompt == "p1" ? failure(500, "internal_error") : answer(prompt));
  });
  std::string id = make_batch(prompts(3));
  run_to_end(id);
  EXPECT_EQ(times_executed("p1"), 3);
  EXPECT_EQ(batch(id)["status"], "completed");
  EXPECT_EQ(lines(id, "error_file_id")["id-1"]["response"]["status_code"], 500);
  EXPECT_EQ(lines(id, "output_file_id").size(), 2u);
}

TEST_F(BatchRunnerTest, AnItemWithoutAnAnswerInTimeFails) {
  options_.item_timeout = std::chrono::milliseconds(1500);
  restart();
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    return prompt == "p1" ? std::nullopt : std::optional(answer(prompt));
  });
  std::string id = make_batch(prompts(3));
  run_to_end(id);
  EXPECT_EQ(times_executed("p1"), 3);
  EXPECT_EQ(lines(id, "error_file_id")["id-1"]["error"]["code"], "timeout");
}

TEST_F(BatchRunnerTest, AReplicaThatDiesMidItemLosesNothing) {
  std::atomic<bool> died = false;
  machine_.behaviour =
      counting([&](FakeReplica& replica, const std::string& prompt) -> std::optional<http::Response> {
        if (prompt == "p9" && !died.exchange(true)) {
          replica.die();
          return std::nullopt;
        }
        return answer(prompt);
      });
  std::string id = make_batch(prompts(40));
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"]["completed"], 40);
  EXPECT_EQ(job(id).attempt, 2);
  EXPECT_EQ(lines(id, "output_file_id").size(), 40u);
  EXPECT_EQ(times_executed("p9"), 2);
  EXPECT_LE(times_executed(), 44) << "only what was in flight is executed again";
}

TEST_F(BatchRunnerTest, WhatKillsTwoEnginesIsQuarantinedAndTheRestGoesOn) {
  std::vector<std::string> asked = prompts(24);
  asked[5] = "poison";
  asked[15] = "venom";
  machine_.behaviour =
      counting([this](FakeReplica& replica, const std::string& prompt) -> std::optional<http::Response> {
        if (prompt == "poison" || prompt == "venom") {
          replica.die();
          return std::nullopt;
        }
        // Neighbours are in flight when it happens, and one of the two at most.
        int number = std::stoi(prompt.substr(1));
        for (auto [place, name] : {std::pair(5, "poison"), std::pair(15, "venom")})
          while (number > place && times_executed(name) == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return answer(prompt);
      });
  std::string id = make_batch(asked);
  run_to_end(id);
  EXPECT_EQ(batch(id)["status"], "completed");
  EXPECT_EQ(batch(id)["request_counts"], (json{{"total", 24}, {"completed", 22}, {"failed", 2}}));
  auto errors = lines(id, "error_file_id");
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors["id-5"]["error"]["code"], "quarantined");
  EXPECT_TRUE(errors["id-5"]["response"].is_null());
  EXPECT_EQ(errors["id-15"]["error"]["code"], "quarantined");
  EXPECT_EQ(times_executed("poison"), 2);
  EXPECT_EQ(times_executed("venom"), 2);
  EXPECT_EQ(job(id).attempt, 5) << "each killed two engines, and nobody else did";
}

TEST_F(BatchRunnerTest, ManyPoisonedItemsAreNoCrashLoop) {
  std::vector<std::string> asked(12, "");
  for (size_t i = 0; i < asked.size(); ++i) asked[i] = "poison" + std::to_string(i);
  machine_.behaviour = [](FakeReplica& replica, const std::string&) -> std::optional<http::Response> {
    replica.die();
    return std::nullopt;
  };
  std::string id = make_batch(asked);
  run_to_end(id);
  EXPECT_EQ(batch(id)["status"], "completed") << job(id).reason;
  EXPECT_EQ(batch(id)["request_counts"]["failed"], 12);
  EXPECT_TRUE(batch(id)["output_file_id"].is_null());
}

TEST_F(BatchRunnerTest, ARestartedCoordinatorGoesOnWithWhatIsRecorded) {
  std::atomic<bool> slow = true;
  machine_.behaviour = counting([&](FakeReplica&, const std::string& prompt) {
    int number = std::stoi(prompt.substr(1));
    while (slow && number >= 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::optional(answer(prompt));
  });
  std::string id = make_batch(prompts(40));
  run_until([&] { return num_recorded(id) == 20; });
  restart();
  slow = false;
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"]["completed"], 40);
  EXPECT_EQ(lines(id, "output_file_id").size(), 40u);
  EXPECT_EQ(job(id).attempt, 1) << "the replica lived on";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(times_executed("p" + std::to_string(i)), 1) << i;
}

// Wherever a coordinator ends: one record an item, one closing, no rubbish.
TEST_F(BatchRunnerTest, CoordinatorsThatEndAgainAndAgain) {
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::optional(answer(prompt));
  });
  std::string id = make_batch(prompts(60));
  for (int life = 1; !stored(id).closed && life < 200; ++life) {
    for (int i = 0; i < life % 7 && !stored(id).closed; ++i) {
      tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    restart();
  }
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"], (json{{"total", 60}, {"completed", 60}, {"failed", 0}}));
  EXPECT_EQ(lines(id, "output_file_id").size(), 60u);
  EXPECT_EQ(num_contents(), std::ssize(store_->batches().contents().value()));
}

TEST_F(BatchRunnerTest, CancellingKeepsWhatIsDone) {
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    return std::stoi(prompt.substr(1)) < 6 ? std::optional(answer(prompt)) : std::nullopt;
  });
  std::string id = make_batch(prompts(20));
  run_until([&] { return num_recorded(id) == 6; });
  json cancelled = send("POST", "/v1/batches/" + id + "/cancel").body;
  EXPECT_EQ(cancelled["status"], "cancelling");
  EXPECT_TRUE(cancelled["cancelling_at"].is_number());
  run_until([&] { return job(id).state == kCancelled; });
  run_to_end(id);
  json end = batch(id);
  EXPECT_EQ(end["status"], "cancelled");
  EXPECT_TRUE(end["cancelled_at"].is_number());
  EXPECT_EQ(end["request_counts"], (json{{"total", 20}, {"completed", 6}, {"failed", 0}}));
  EXPECT_EQ(lines(id, "output_file_id").size(), 6u);
  EXPECT_TRUE(end["error_file_id"].is_null());
  EXPECT_EQ(send("POST", "/v1/batches/" + id + "/cancel").status, 200) << "it is so already";
}

TEST_F(BatchRunnerTest, ABatchThatNeverStartedIsCancelledWithoutFiles) {
  std::string id = make_batch(prompts(2));
  EXPECT_EQ(send("POST", "/v1/batches/" + id + "/cancel").body["status"], "cancelling");
  run_to_end(id);
  EXPECT_EQ(batch(id)["status"], "cancelled");
  EXPECT_TRUE(batch(id)["output_file_id"].is_null());
  EXPECT_EQ(machine_.replicas.size(), 0u);
}

TEST_F(BatchRunnerTest, ExpiryKeepsWhatIsDoneAndNamesTheRest) {
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    return std::stoi(prompt.substr(1)) % 2 == 0 ? std::optional(answer(prompt)) : std::nullopt;
  });
  options_.concurrency = 10;
  restart();
  std::string id = make_batch(prompts(10), "1h");
  run_until([&] { return num_recorded(id) == 5; });
  clock_offset_us_ = 3'601'000'000;
  run_to_end(id);
  json end = batch(id);
  EXPECT_EQ(end["status"], "expired");
  EXPECT_TRUE(end["expired_at"].is_number());
  EXPECT_EQ(end["request_counts"], (json{{"total", 10}, {"completed", 5}, {"failed", 5}}));
  EXPECT_EQ(lines(id, "output_file_id").size(), 5u);
  auto errors = lines(id, "error_file_id");
  EXPECT_EQ(errors.size(), 5u);
  EXPECT_EQ(errors["id-3"]["error"]["code"], "batch_expired");
}

TEST_F(BatchRunnerTest, ABatchThatExpiresWaitingNamesAll) {
  std::string id = make_batch(prompts(3), "1s");
  clock_offset_us_ = 2'000'000;
  run_to_end(id);
  EXPECT_EQ(batch(id)["status"], "expired");
  EXPECT_EQ(lines(id, "error_file_id").size(), 3u);
}

TEST_F(BatchRunnerTest, SuspendingCountsAsNoDeath) {
  std::atomic<bool> answers = false;
  machine_.behaviour = counting([&](FakeReplica&, const std::string& prompt) {
    return answers ? std::optional(answer(prompt)) : std::nullopt;
  });
  std::string id = make_batch(prompts(3));
  std::string job_path = "/v1/jobs/" + job_name(parse_batch_name(id).value());
  for (int round = 0; round < 3; ++round) {
    run_until([&] { return times_executed("p0") == round + 1; });
    ASSERT_EQ(send("POST", job_path + "/suspend").status, 200);
    run_until([&] { return job(id).state == kSuspended; });
    EXPECT_EQ(batch(id)["status"], "in_progress");
    ASSERT_EQ(send("POST", job_path + "/resume").status, 200);
    EXPECT_EQ(batch(id)["status"], "in_progress") << "it does not go back to validating";
  }
  answers = true;
  run_to_end(id);
  EXPECT_EQ(batch(id)["request_counts"]["completed"], 3);
}

TEST_F(BatchRunnerTest, ALostInputFileFailsTheBatchAndKeepsWhatIsDone) {
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    return prompt == "p0" ? std::optional(answer(prompt)) : std::nullopt;
  });
  std::string id = make_batch(prompts(3));
  run_until([&] { return num_recorded(id) == 1; });
  std::filesystem::remove(input_path(id));
  restart();
  run_to_end(id);
  json end = batch(id);
  EXPECT_EQ(end["status"], "failed");
  EXPECT_EQ(end["errors"]["data"][0]["code"], "input_lost");
  EXPECT_EQ(lines(id, "output_file_id").size(), 1u);
}

TEST_F(BatchRunnerTest, AnInputFileThatLostItsLastLineIsLost) {
  std::string id = make_batch(prompts(3));
  std::string path = input_path(id);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) * 2 / 3);
  run_to_end(id);
  EXPECT_EQ(batch(id)["status"], "failed");
  EXPECT_EQ(batch(id)["errors"]["data"][0]["code"], "input_lost");
  std::string expires = make_batch(prompts(3), "1s");
  path = input_path(expires);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) * 2 / 3);
  clock_offset_us_ = 2'000'000;
  run_to_end(expires);
  EXPECT_EQ(batch(expires)["status"], "expired");
  EXPECT_EQ(lines(expires, "error_file_id").size(), 2u);
  EXPECT_EQ(batch(expires)["request_counts"]["failed"], 2) << "as many as the file tells of";
}

TEST_F(BatchRunnerTest, AnInputFileThatIsNotWhatItWasIsLost) {
  std::string cut = make_batch(prompts(3));
  std::filesystem::resize_file(input_path(cut), std::filesystem::file_size(input_path(cut)) - 5);
  run_to_end(cut);
  expect_input_lost(cut);
  std::string damaged = make_batch(prompts(3));
  damage(damaged, "id-1");
  run_to_end(damaged);
  expect_input_lost(damaged);
  EXPECT_EQ(times_executed(), 0);
}

TEST_F(BatchRunnerTest, AnInputFileThatIsDamagedWhileItIsReadIsLost) {
  options_.concurrency = 1;
  restart();
  std::atomic<bool> answers = false;
  machine_.behaviour = counting([&](FakeReplica&, const std::string& prompt) {
    while (!answers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::optional(answer(prompt));
  });
  std::string id = make_batch(prompts(4));
  run_until([&] { return times_executed("p0") == 1; });
  damage(id, "id-2");
  answers = true;
  run_to_end(id);
  expect_input_lost(id);
  EXPECT_EQ(lines(id, "output_file_id").size(), 2u) << "what was executed before";
}

TEST_F(BatchRunnerTest, AnInputFileThatIsDamagedUnderADeadEngineIsLost) {
  options_.max_deaths = 1;
  restart();
  machine_.behaviour =
      counting([&](FakeReplica& replica, const std::string&) -> std::optional<http::Response> {
        damage("batch-1", "id-0");
        replica.die();
        return std::nullopt;
      });
  std::string id = make_batch(prompts(1));
  ASSERT_EQ(id, "batch-1");
  run_to_end(id);
  expect_input_lost(id);
}

TEST_F(BatchRunnerTest, ABatchThatExpiresWithADamagedInputNamesWhatIsLeft) {
  std::string cut = make_batch(prompts(3), "1s");
  std::filesystem::resize_file(input_path(cut), std::filesystem::file_size(input_path(cut)) - 5);
  std::string damaged = make_batch(prompts(3), "1s");
  damage(damaged, "id-1");
  std::string grown = make_batch(prompts(3), "1s");
  std::ofstream(input_path(grown), std::ios::app) << testing::item_line("id-3", "p3");
  clock_offset_us_ = 2'000'000;
  for (const auto& [id, num_left] : {std::pair(cut, 2), std::pair(damaged, 2), std::pair(grown, 3)}) {
    SCOPED_TRACE(id);
    run_to_end(id);
    EXPECT_EQ(batch(id)["status"], "expired");
    EXPECT_EQ(batch(id)["request_counts"]["failed"], num_left);
    EXPECT_EQ(std::ssize(lines(id, "error_file_id")), num_left);
  }
  EXPECT_TRUE(lines(damaged, "error_file_id").contains("id-2")) << "behind the one that is damaged";
}

TEST_F(BatchRunnerTest, AnAnswerBeyondAllMeasureFailsItsItemOnly) {
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    constexpr size_t kBytes = 17 << 20;
    return std::optional(prompt == "p1" ? answer(std::string(kBytes, 'x')) : answer(prompt));
  });
  std::string id = make_batch(prompts(3));
  run_to_end(id);
  EXPECT_EQ(times_executed("p1"), 3);
  EXPECT_EQ(batch(id)["request_counts"], (json{{"total", 3}, {"completed", 2}, {"failed", 1}}));
  EXPECT_EQ(lines(id, "error_file_id")["id-1"]["error"]["code"], "bad_answer");
}

TEST_F(BatchRunnerTest, ADeathThatSettlesTheLastItemNeedsNoOtherReplica) {
  machine_.behaviour = [](FakeReplica& replica, const std::string&) -> std::optional<http::Response> {
    replica.die();
    return std::nullopt;
  };
  std::string id = make_batch({"poison"});
  run_to_end(id);
  EXPECT_EQ(batch(id)["status"], "completed");
  EXPECT_EQ(batch(id)["request_counts"]["failed"], 1);
  EXPECT_EQ(machine_.replicas.size(), 2u);
}

TEST_F(BatchRunnerTest, FilesThatCannotBeWrittenLeaveNothingAndAreTriedAgain) {
  machine_.behaviour = counting([](FakeReplica&, const std::string& prompt) {
    return std::optional(prompt == "p1" ? failure(400, std::string(200'000, 'x')) : answer(prompt));
  });
  std::string id = make_batch(prompts(3));
  run_until([&] { return num_recorded(id) == 3; });
  {
    // Enough for the output file, too little for the error file.
    testing::FullDisk full(100'000);
    auto files = write_batch_files(*store_, contents_, job(id), stored(id), false);
    EXPECT_EQ(files.status().code(), StatusCode::kUnavailable);
  }
  EXPECT_EQ(num_contents(), 1) << "the input file's";
  std::filesystem::rename(folder_.file("files"), folder_.file("elsewhere"));
  run_until([&] { return job(id).state == kFinalizing && !machine_.last().alive(); });
  for (int i = 0; i < 10; ++i) tick();
  EXPECT_EQ(batch(id)["status"], "finalizing");
  std::filesystem::rename(folder_.file("elsewhere"), folder_.file("files"));
  run_to_end(id);
  EXPECT_EQ(batch(id)["status"], "completed");
  EXPECT_EQ(lines(id, "output_file_id").size(), 2u);
  EXPECT_EQ(lines(id, "error_file_id").size(), 1u);
}

}  // namespace
}  // namespace llm_dist::cluster
