// Random arrivals, cancellations, pools, look-ahead depths and stages against a device that follows plans
// literally.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "src/sched/scheduler.h"
#include "tests/sched/fake_device.h"

namespace llm_dist::sched {
namespace {

struct Planned {
  SequenceRequest request;
  int64_t arrives = 0;   // turn
  int64_t cancels = -1;  // turn, or never
};

struct Scenario {
  SchedulerOptions options;
  std::vector<Planned> requests;
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int32_t between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine_);
  }
  bool chance(int32_t percent) { return between(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

SchedulerOptions random_options(Dice& dice) {
  SchedulerOptions options;
  options.block_size = dice.chance(30) ? 1 : dice.between(2, 8);
  options.max_model_len = dice.between(8, 64);
  const int32_t largest = (options.max_model_len + options.block_size - 1) / options.block_size;
  options.num_blocks = dice.chance(60) ? largest + dice.between(0, 4) : largest * dice.between(2, 8);
  options.max_num_seqs = dice.between(1, 10);
  options.enable_chunked_prefill = dice.chance(60);
  options.max_num_batched_tokens =
      options.enable_chunked_prefill
          ? options.max_num_seqs + dice.between(0, 20)
          : std::max(options.max_num_seqs, options.max_model_len) + dice.between(0, 8);
  options.num_micro_batches = dice.between(1, 4);
  constexpr int32_t kDepths[] = {1, 2, 3, 5};
  options.max_steps_in_flight = kDepths[dice.between(0, 3)];
  options.policy = dice.chance(70) ? SchedulingPolicy::kFcfs : SchedulingPolicy::kPriority;
  return options;
}

Planned random_request(Dice& dice, const SchedulerOptions& options, SequenceId id) {
  Planned planned;
  planned.arrives = dice.chance(40) ? 0 : dice.between(0, 120);
  if (dice.chance(15)) planned.cancels = planned.arrives + dice.between(0, 60);
  SequenceRequest& request = planned.request;
  request.id = id;
  request.priority = dice.between(0, 2);
  request.arrival = TimePoint(std::chrono::microseconds(planned.arrives));
  const int32_t prompt_len = dice.between(1, options.max_model_len - 1);
  for (int32_t i = 0; i < prompt_len; ++i) request.prompt.push_back(dice.between(1, kVocabulary - 1));
  request.sampling.seed = id * 7919;
  request.sampling.max_tokens = dice.between(1, options.max_model_len + 3);
  request.sampling.min_tokens = dice.chance(20) ? dice.between(0, 6) : 0;
  if (dice.chance(80)) request.sampling.end_token_ids = {kEndToken};
  if (dice.chance(20)) request.sampling.num_prompt_logprobs = 0;
  return planned;
}

Scenario random_scenario(uint64_t seed) {
  Dice dice(seed);
  Scenario scenario{.options = random_options(dice)};
  const int32_t num_requests = dice.between(1, 24);
  for (int32_t i = 1; i <= num_requests; ++i) {
    scenario.requests.push_back(random_request(dice, scenario.options, static_cast<SequenceId>(i)));
  }
  std::ranges::stable_sort(scenario.requests, {}, &Planned::arrives);
  return scenario;
}

struct Output {
  std::vector<int32_t> tokens;
  std::vector<int32_t> scored;  // prompt tokens
  int32_t num_scores = 0;
  FinishReason finish = FinishReason::kNone;
};

// What the sequence yields when it runs alone.
Output expected_output(const SequenceRequest& request, int32_t max_model_len) {
  Output output;
  std::vector<int32_t> tokens = request.prompt;
  const auto prompt_len = static_cast<int32_t>(tokens.size());
  const int32_t max_tokens = std::min(request.sampling.max_tokens, max_model_len - prompt_len);
  while (output.finish == FinishReason::kNone) {
    const auto generated = static_cast<int32_t>(output.tokens.size());
    const int32_t token = next_token(request.sampling.seed, tokens, generated >= request.sampling.min_tokens);
    tokens.push_back(token);
    output.tokens.push_back(token);
    if (!request.sampling.end_token_ids.empty() && token == kEndToken) {
      output.finish = FinishReason::kStop;
    } else if (generated + 1 == max_tokens) {
      output.finish = FinishReason::kLength;
    }
  }
  return output;
}

class Simulation {
 public:
  Simulation(Scenario scenario, uint64_t seed)
      : scenario_(std::move(scenario)),
        options_(scenario_.options),
        dice_(seed ^ 0xabcdef),
        scheduler_(options_),
        published_(options_.max_num_seqs, max_blocks(), options_.block_size, options_.num_blocks),
        device_(options_.max_num_seqs, max_blocks(), options_.block_size, options_.num_blocks),
        block_touched_(static_cast<size_t>(options_.num_blocks)),
        slot_touched_(static_cast<size_t>(options_.max_num_seqs)),
        slot_sampled_(static_cast<size_t>(options_.max_num_seqs)) {}

  void run() {
    int64_t most_turns = 2000;
    for (const Planned& planned : scenario_.requests) {
      most_turns += 60 * planned.request.sampling.max_tokens;
      // A prompt that is scored may get one row a step.
      if (planned.request.sampling.num_prompt_logprobs >= 0) most_turns += 10 * options_.max_model_len;
    }
    for (turn_ = 0; !done(); ++turn_) {
      ASSERT_LT(turn_, most_turns) << "no end in sight";
      arrive_and_cancel();
      ASSERT_NO_FATAL_FAILURE(take_turn());
    }
    check_end();
  }

  uint64_t num_preemptions() const { return scheduler_.stats().num_preemptions; }
  size_t num_deepest() const { return deepest_; }

 private:
  int32_t max_blocks() const {
    return (options_.max_model_len + options_.block_size - 1) / options_.block_size;
  }
  bool all_arrived() const { return next_arrival_ == scenario_.requests.size(); }
  bool done() const { return all_arrived() && scheduler_.idle(); }

  void arrive_and_cancel() {
    for (; !all_arrived() && scenario_.requests[next_arrival_].arrives <= turn_; ++next_arrival_) {
      const Status status = scheduler_.add(scenario_.requests[next_arrival_].request);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    for (const Planned& planned : scenario_.requests) {
      if (planned.cancels == turn_ && scheduler_.cancel(planned.request.id))
        cancelled_.insert(planned.request.id);
    }
  }

  // Whether the host is ahead of the device or behind is chance.
  void take_turn() {
    StepPlan plan;
    if (dice_.chance(70) && scheduler_.schedule(plan)) {
      ASSERT_NO_FATAL_FAILURE(publish(plan));
    } else if (!in_flight_.empty()) {
      ASSERT_NO_FATAL_FAILURE(retire());
    } else if (scheduler_.schedule(plan)) {
      ASSERT_NO_FATAL_FAILURE(publish(plan));
    } else {
      ASSERT_TRUE(scheduler_.idle()) << "work, nothing in flight, and nothing to schedule";
    }
  }

  void publish(const StepPlan& plan) {
    ASSERT_NO_FATAL_FAILURE(check_budget(plan));
    ASSERT_NO_FATAL_FAILURE(check_slots(plan));
    encode(plan, bytes_);
    StepPlan decoded;
    const Status status = decode(bytes_, decoded);
    ASSERT_TRUE(status.ok()) << status.to_string();
    const Status applied = published_.apply(decoded);
    ASSERT_TRUE(applied.ok()) << applied.to_string();
    ASSERT_NO_FATAL_FAILURE(check_runs(plan));
    ASSERT_NO_FATAL_FAILURE(check_ownership());
    in_flight_.push_back(std::move(decoded));
    deepest_ = std::max(deepest_, in_flight_.size());
    ASSERT_EQ(scheduler_.steps_in_flight(), static_cast<int>(in_flight_.size()));
  }

  void check_budget(const StepPlan& plan) {
    EXPECT_EQ(plan.step, ++last_step_);
    EXPECT_LT(in_flight_.size(), static_cast<size_t>(options_.max_steps_in_flight));
    ASSERT_FALSE(plan.runs.empty());
    EXPECT_LE(plan.num_tokens(), options_.max_num_batched_tokens);
    EXPECT_LE(plan.runs.size(), static_cast<size_t>(options_.max_num_seqs));
    EXPECT_LE(plan.num_samples(), options_.max_num_seqs);
    EXPECT_LT(plan.needs_tokens_of, plan.step);
    EXPECT_TRUE(std::ranges::is_partitioned(plan.runs, [](const SlotRun& run) { return run.count == 1; }));
  }

  // Before the plan is applied: what ends and starts may not be touched by a step in flight.
  void check_slots(const StepPlan& plan) {
    std::set<int32_t> ended(plan.ended_slots.begin(), plan.ended_slots.end());
    for (const int32_t slot : ended) EXPECT_LE(slot_touched_[index(slot)], retired_);
    for (const SlotStart& start : plan.starts) {
      EXPECT_LE(slot_touched_[index(start.slot)], retired_);
      EXPECT_LE(slot_sampled_[index(start.slot)], plan.needs_tokens_of);
      slot_sampled_[index(start.slot)] = 0;
    }
    for (const int32_t block : plan.blocks) {
      EXPECT_LE(block_touched_[index(block)], retired_)
          << "block " << block << " is in use by a step in flight";
    }
  }

  void check_runs(const StepPlan& plan) {
    for (const SlotRun& run : plan.runs) {
      const Mirror::Slot& slot = published_.slot(run.slot);
      if (run.begin + run.count > slot.params.num_tokens) {
        EXPECT_GT(slot_sampled_[index(run.slot)], 0u);
        EXPECT_LE(slot_sampled_[index(run.slot)], plan.needs_tokens_of);
      }
      const bool scored = slot.params.num_prompt_logprobs >= 0;
      EXPECT_TRUE(scored || run.num_scores == 0);
      if (!options_.enable_chunked_prefill && run.begin == 0 && !scored) {
        EXPECT_EQ(run.count, slot.params.num_tokens);
      }
      EXPECT_LE(run.begin + run.count + run.samples, options_.max_model_len);
      if (run.samples == 1) slot_sampled_[index(run.slot)] = plan.step;
      slot_touched_[index(run.slot)] = plan.step;
      for (const int32_t block : published_.blocks(run.slot)) block_touched_[index(block)] = plan.step;
    }
  }

  void check_ownership() {
    std::set<int32_t> owned;
    size_t num_owned = 0;
    for (int32_t slot = 0; slot < published_.num_slots(); ++slot) {
      const std::span<const int32_t> blocks = published_.blocks(slot);
      owned.insert(blocks.begin(), blocks.end());
      num_owned += blocks.size();
    }
    EXPECT_EQ(owned.size(), num_owned) << "a block stands in two tables";
    const SchedulerStats stats = scheduler_.stats();
    EXPECT_EQ(stats.num_free_blocks, options_.num_blocks - static_cast<int32_t>(num_owned));
    EXPECT_EQ(stats.allocated_kv_tokens, static_cast<int64_t>(num_owned) * options_.block_size);
    EXPECT_LE(stats.used_kv_tokens, stats.allocated_kv_tokens);
  }

  void retire() {
    const StepPlan plan = std::move(in_flight_.front());
    in_flight_.pop_front();
    std::string error;
    const std::vector<int32_t> tokens = device_.execute(plan, error);
    ASSERT_EQ(error, "");
    scheduler_.retire(plan.step, tokens, events_);
    retired_ = plan.step;
    for (const TokenEvent& event : events_) {
      Output& output = outputs_[event.id];
      EXPECT_EQ(output.finish, FinishReason::kNone) << "an event after the last";
      EXPECT_FALSE(cancelled_.contains(event.id));
      if (event.prompt_position >= 0) {
        EXPECT_TRUE(output.tokens.empty());
        EXPECT_EQ(event.prompt_position, ++output.num_scores) << "each once, in order";
        EXPECT_EQ(event.token, tokens.at(static_cast<size_t>(event.sample_index)));
        output.scored.push_back(event.token);
        continue;
      }
      EXPECT_EQ(event.first, output.tokens.empty());
      EXPECT_EQ(event.token, tokens.at(static_cast<size_t>(event.sample_index)));
      output.tokens.push_back(event.token);
      output.finish = event.finish;
    }
  }

  void check_end() {
    const SchedulerStats stats = scheduler_.stats();
    EXPECT_EQ(stats.num_free_blocks, stats.num_total_blocks);
    EXPECT_EQ(stats.used_kv_tokens, 0);
    EXPECT_EQ(stats.num_running, 0);
    EXPECT_EQ(stats.num_waiting, 0);
    uint64_t num_delivered = 0;
    for (const Planned& planned : scenario_.requests) {
      const Output expected = expected_output(planned.request, options_.max_model_len);
      Output& output = outputs_[planned.request.id];
      num_delivered += output.tokens.size();
      if (cancelled_.contains(planned.request.id)) {
        ASSERT_LE(output.tokens.size(), expected.tokens.size());
        EXPECT_TRUE(
            std::ranges::equal(output.tokens, std::span(expected.tokens).first(output.tokens.size())));
      } else {
        EXPECT_EQ(output.tokens, expected.tokens) << "sequence " << planned.request.id;
        EXPECT_EQ(output.finish, expected.finish);
        const std::vector<int32_t>& prompt = planned.request.prompt;
        const bool scored = planned.request.sampling.num_prompt_logprobs >= 0;
        EXPECT_EQ(output.scored,
                  std::vector<int32_t>(scored ? prompt.begin() + 1 : prompt.end(), prompt.end()));
      }
    }
    EXPECT_EQ(stats.generation_tokens_total, num_delivered);
  }

  static size_t index(int32_t value) { return static_cast<size_t>(value); }

  Scenario scenario_;
  SchedulerOptions options_;
  Dice dice_;
  Scheduler scheduler_;
  Mirror published_;  // follows at once, the device when the step runs
  FakeDevice device_;
  std::vector<std::byte> bytes_;
  std::deque<StepPlan> in_flight_;
  std::vector<TokenEvent> events_;
  std::map<SequenceId, Output> outputs_;
  std::set<SequenceId> cancelled_;
  std::vector<uint64_t> block_touched_;  // [num_blocks]: last step whose runs reach the block
  std::vector<uint64_t> slot_touched_;   // [max_num_seqs]
  std::vector<uint64_t> slot_sampled_;   // [max_num_seqs]: last step that sampled for the slot's holder
  size_t next_arrival_ = 0;
  size_t deepest_ = 0;
  int64_t turn_ = 0;
  uint64_t last_step_ = 0;
  uint64_t retired_ = 0;
};

TEST(SchedulerSimulation, RandomScenariosEndAsIfEachSequenceRanAlone) {
  constexpr uint64_t kNumScenarios = 1500;
  uint64_t num_preemptions = 0;
  size_t num_deep = 0;
  for (uint64_t seed = 1; seed <= kNumScenarios; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(random_scenario(seed), seed);
    simulation.run();
    if (testing::Test::HasFailure()) return;
    num_preemptions += simulation.num_preemptions();
    num_deep += simulation.num_deepest() >= 3 ? 1 : 0;
  }
  // The scenarios reach what they are for.
  EXPECT_GT(num_preemptions, kNumScenarios);
  EXPECT_GT(num_deep, kNumScenarios / 4);
  RecordProperty("preemptions", static_cast<int>(num_preemptions));
  RecordProperty("deep", static_cast<int>(num_deep));
}

}  // namespace
}  // namespace llm_dist::sched
