// The engine end to end over whole replicas: load, preemption, cancellation, order of loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>
#include <thread>

#include "tests/engine/requests.h"

namespace llm_dist::engine {
namespace {

using parallel::Layout;

// What two orders of summation may make of a logit.
constexpr float kEpsilon = 1e-3f;

// Replays sequences one by one in a plain loop and checks every token against the logits there.
class Replay {
 public:
  explicit Replay(const GoldenCase& golden) : recorder_({}, golden.vocab_size()) {
    EngineOptions options = golden_options({});
    options.async_scheduling = false;
    replica_ =
        start(golden, {.engine = options, .hooks = [this](int rank) { return recorder_.hooks(rank); }});
  }

  // Every token within epsilon of the best one, given those before it.
  void check(std::vector<int32_t> prompt, const std::vector<int32_t>& tokens) {
    for (size_t done = 0; done < tokens.size();) {
      uint64_t tag = ++last_tag_;
      size_t left = tokens.size() - done;
      Output output = replica_->generate({greedy_request(prompt, static_cast<int32_t>(left), tag)}).front();
      size_t same = 0;
      while (same < left && output.tokens[same] == tokens[done + same]) ++same;
      if (same < left) {
        ++num_ties_;
        std::vector<float> row = recorder_.row(tag, static_cast<int64_t>(prompt.size() + same));
        float best = row[static_cast<size_t>(output.tokens[same])];
        ASSERT_NEAR(row[static_cast<size_t>(tokens[done + same])], best, kEpsilon) << "token " << done + same;
        ++same;
      }
      prompt.insert(prompt.end(),
                    tokens.begin() + static_cast<ptrdiff_t>(done),
                    tokens.begin() + static_cast<ptrdiff_t>(done + same));
      done += same;
    }
  }
  int num_ties() const { return num_ties_; }

 private:
  LogitsRecorder recorder_;
  std::unique_ptr<Replica> replica_;
  uint64_t last_tag_ = 0;
  int num_ties_ = 0;
};

EngineOptions crowded_options(const Layout& layout) {
  EngineOptions options = golden_options(layout);
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = 32;
  options.num_blocks = 28;  // room for 112 tokens, where 16 sequences want up to 960
  return options;
}

class Crowd : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Layouts,
                         Crowd,
                         testing::Values(Layout{},
                                         Layout{.tp = 2, .pp = 1},
                                         Layout{.tp = 1, .pp = 3},
                                         Layout{.tp = 2, .pp = 2, .sequence_parallel = true}),
                         [](const auto& named) {
                           return "tp" + std::to_string(named.param.tp) + "pp" +
                                  std::to_string(named.param.pp);
                         });

TEST_P(Crowd, PreemptedAndCancelledSequencesLeaveTheOthersAsIfAlone) {
  GoldenCase golden = load_golden("multiquery");
  auto replica = start(golden, {.engine = crowded_options(GetParam())});
  int32_t free_at_first = replica->engine().stats().scheduler.num_free_blocks;
  std::vector<sched::SequenceRequest> requests = random_requests(golden, 64);
  std::vector<std::shared_ptr<OutputSink>> sinks;
  std::vector<sched::SequenceId> ids;
  for (const sched::SequenceRequest& request : requests) {
    sinks.push_back(std::make_shared<OutputSink>());
    auto id = replica->engine().submit(request, sinks.back());
    ASSERT_TRUE(id.ok()) << id.status().to_string();
    ids.push_back(*id);
  }
  for (size_t i = 0; i < ids.size(); i += 5) {  // a fifth: some while they wait, some midway
    if (i % 2 == 0) sinks[i]->wait_for_tokens(2, 60);
    replica->engine().cancel(ids[i]);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i % 5 == 0) continue;
    ASSERT_TRUE(sinks[i]->wait(120)) << "sequence " << i;
  }
  for (auto deadline = Deadline::after_seconds(60); !replica->engine().idle() && !deadline.expired();)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  // The steps that cancelled sequences were in retire after their last event.
  for (auto deadline = Deadline::after_seconds(60);
       replica->engine().stats().scheduler.num_free_blocks != free_at_first && !deadline.expired();)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EngineStats stats = replica->engine().stats();
  EXPECT_GE(stats.scheduler.num_preemptions, 10u);
  EXPECT_EQ(stats.scheduler.num_free_blocks, free_at_first);
  EXPECT_EQ(stats.scheduler.num_running, 0);
  replica.reset();

  Replay replay(golden);
  for (size_t i = 0; i < ids.size(); ++i) {
    SCOPED_TRACE("sequence " + std::to_string(i));
    Output output = sinks[i]->output();
    if (i % 5 != 0) {
      EXPECT_EQ(output.finish, sched::FinishReason::kLength);
      EXPECT_EQ(output.tokens.size(), static_cast<size_t>(requests[i].sampling.max_tokens));
    }
    replay.check(requests[i].prompt, output.tokens);
  }
  std::printf("%llu preemptions, %d ties\n",
              static_cast<unsigned long long>(stats.scheduler.num_preemptions),
              replay.num_ties());
}

TEST(Engine, DelaysInStreamsChangeNothing) {
  GoldenCase golden = load_golden("grouped");
  std::vector<sched::SequenceRequest> requests = random_requests(golden, 12);
  std::vector<std::vector<int32_t>> expected = generate(golden, golden_options({}), requests);
  // A pause before one task in sixteen, at places that differ from stream to stream and from run to run.
  for (uint64_t run = 0; run < 3; ++run) {
    auto pause = [run](const std::string& stream, uint64_t task) {
      uint64_t mixed = (task + run * 977 + std::hash<std::string>{}(stream)) * 0x9e3779b97f4a7c15u;
      if (mixed >> 60 == 0) std::this_thread::sleep_for(std::chrono::microseconds((mixed >> 32) % 1500));
    };
    for (const Layout& layout : {Layout{}, Layout{.tp = 2, .pp = 2}}) {
      auto replica = start(golden, {.engine = golden_options(layout), .before_task = pause});
      EXPECT_EQ(tokens_of(replica->generate(requests)), expected) << to_string(layout) << ", run " << run;
    }
  }
}

TEST(Engine, LoopsAndChunkingYieldTheSameTokens) {
  GoldenCase golden = load_golden("llama3");
  std::vector<sched::SequenceRequest> requests = random_requests(golden, 16);
  EngineOptions options = golden_options({});
  std::vector<std::vector<int32_t>> expected = generate(golden, options, requests);
  options.async_scheduling = false;
  EXPECT_EQ(generate(golden, options, requests), expected) << "plain loop";
  options.max_num_batched_tokens = 64;
  options.enable_chunked_prefill = false;
  EXPECT_EQ(generate(golden, options, requests), expected) << "plain loop, whole prompts";
  options.async_scheduling = true;
  options.layout = {.tp = 1, .pp = 2};
  EXPECT_EQ(generate(golden, options, requests), expected) << "two stages, whole prompts";
  options.async_scheduling = false;
  EXPECT_EQ(generate(golden, options, requests), expected) << "two stages, plain loop, whole prompts";
}

TEST(Engine, SeededSamplingIsTheSameInEveryLayout) {
  GoldenCase golden = load_golden("grouped");
  std::vector<sched::SequenceRequest> requests = random_requests(golden, 12);
  for (sched::SequenceRequest& request : requests) {
    request.sampling.temperature = 1.5f;
    request.sampling.top_p = 0.95f;
    request.sampling.seed = 1000 + request.sampling.seed;
    request.sampling.frequency_penalty = 0.3f;
    request.sampling.repetition_penalty = 1.1f;
  }
  std::vector<std::vector<int32_t>> expected = generate(golden, golden_options({}), requests);
  for (const Layout& layout : {Layout{.tp = 2},
                               Layout{.tp = 3},
                               Layout{.tp = 1, .pp = 3},
                               Layout{.tp = 2, .pp = 2, .sequence_parallel = true}}) {
    EXPECT_EQ(generate(golden, golden_options(layout), requests), expected) << to_string(layout);
  }
  requests[0].sampling.seed += 1;
  EXPECT_NE(generate(golden, golden_options({}), requests)[0], expected[0]);
}

TEST(Engine, LogprobsAndStopTokensAgreeAcrossLayouts) {
  GoldenCase golden = load_golden("multiquery");
  std::vector<sched::SequenceRequest> requests;
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    requests.push_back(greedy_request(golden.prompts[i], 32));
    requests.back().sampling.num_logprobs = 5;
    requests.back().sampling.end_token_ids = {golden.tokens[i][10]};
    requests.back().sampling.min_tokens = i == 0 ? 11 : 0;
  }
  for (const Layout& layout : {Layout{}, Layout{.tp = 2}, Layout{.tp = 2, .pp = 2}}) {
    SCOPED_TRACE(to_string(layout));
    std::vector<Output> outputs = start(golden, {.engine = golden_options(layout)})->generate(requests);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Output& output = outputs[i];
      auto first_end = std::find(golden.tokens[i].begin(), golden.tokens[i].end(), golden.tokens[i][10]);
      auto expected_len = static_cast<size_t>(first_end - golden.tokens[i].begin()) + 1;
      if (i > 0) {
        EXPECT_EQ(output.finish, sched::FinishReason::kStop);
        ASSERT_EQ(output.tokens.size(), expected_len);
      } else {
        ASSERT_GT(output.tokens.size(), 11u);
        EXPECT_NE(output.tokens[10], golden.tokens[i][10]) << "an end token before min_tokens";
      }
      const float* logits = golden.logits_at(i, 0);
      double sum = 0.0;
      for (int64_t v = 0; v < golden.vocab_size(); ++v) sum += std::exp(static_cast<double>(logits[v]));
      EXPECT_NEAR(output.logprobs[0], logits[output.tokens[0]] - std::log(sum), 1e-3);
    }
  }
}

// Masks that depend on tokens in flight are exact: the same in a plain loop, with look-ahead and over stages.
TEST(Engine, RulesOfSingleTokensHoldInEveryLayout) {
  GoldenCase golden = load_golden("grouped");
  std::vector<sched::SequenceRequest> requests = random_requests(golden, 10);
  std::vector<std::vector<int32_t>> plain = generate(golden, golden_options({}), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    sched::SamplingParams& sampling = requests[i].sampling;
    const std::vector<int32_t>& was = plain[i];
    if (i % 5 == 0) {  // what it said, from the second token on
      std::vector<std::vector<int32_t>> bans = {{was[1], was[2], was[3]}, {was[0], was[1]}};
      sampling.rules = pack_rules({}, {}, bans);
    } else if (i % 5 == 1) {
      sampling.no_repeat_ngram_size = 2;
    } else if (i % 5 == 2) {
      sampling.rules = pack_rules({3, 5, 8, 13, 21, 34}, {}, {});
      sampling.temperature = 2;
    } else if (i % 5 == 3) {
      const TokenBias biases[] = {{(was[1] + 1) % static_cast<int32_t>(golden.vocab_size()), -100.0f},
                                  {was[1], 100.0f}};
      sampling.rules = pack_rules({}, biases, {});
    } else {  // nothing but end tokens until then
      sampling.min_tokens = 3;
      for (int32_t id = 1; id < golden.vocab_size(); ++id) sampling.end_token_ids.push_back(id);
    }
  }
  EngineOptions loop = golden_options({});
  loop.async_scheduling = false;
  std::vector<std::vector<int32_t>> expected = generate(golden, loop, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE("sequence " + std::to_string(i));
    const std::vector<int32_t>& now = expected[i];
    if (i % 5 == 0) {
      EXPECT_EQ(now[0], plain[i][0]);
      EXPECT_NE(now[1], plain[i][1]);
    } else if (i % 5 == 1) {
      std::vector<int32_t> all = requests[i].prompt;
      all.insert(all.end(), now.begin(), now.end());
      std::set<std::pair<int32_t, int32_t>> seen;
      for (size_t t = 0; t + 1 < all.size(); ++t) {
        bool fresh = seen.emplace(all[t], all[t + 1]).second;
        EXPECT_TRUE(fresh || t + 1 < requests[i].prompt.size()) << "at " << t;
      }
    } else if (i % 5 == 2) {
      for (int32_t token : now)
        EXPECT_TRUE(std::set<int32_t>({3, 5, 8, 13, 21, 34}).contains(token)) << token;
      EXPECT_GT(std::set<int32_t>(now.begin(), now.end()).size(), 1u);
    } else if (i % 5 == 3) {
      EXPECT_EQ(now, std::vector<int32_t>(now.size(), plain[i][1]));
    } else {
      EXPECT_EQ(std::vector<int32_t>(now.begin(), now.begin() + 3), (std::vector<int32_t>{0, 0, 0}));
      EXPECT_TRUE(now.size() == 4 || now[3] == 0);
    }
  }
  for (const Layout& layout : {Layout{},
                               Layout{.tp = 2},
                               Layout{.tp = 1, .pp = 3},
                               Layout{.tp = 2, .pp = 2, .sequence_parallel = true}}) {
    EXPECT_EQ(generate(golden, golden_options(layout), requests), expected) << to_string(layout);
  }
}

// What scoring says of a text is what generating it said, in chunks and over stages, and beside other
// requests.
TEST(Engine, PromptsAreScoredAsTheyWereGenerated) {
  GoldenCase golden = load_golden("grouped");
  std::vector<sched::SequenceRequest> requests = random_requests(golden, 8);
  for (sched::SequenceRequest& request : requests) {
    request.sampling.num_logprobs = 0;
    request.sampling.max_tokens = 25;
  }
  std::vector<Output> written = start(golden, {.engine = golden_options({})})->generate(requests);
  std::vector<sched::SequenceRequest> scoring = requests;
  for (size_t i = 0; i < scoring.size(); ++i) {
    std::vector<int32_t>& text = scoring[i].prompt;
    text.insert(text.end(), written[i].tokens.begin(), written[i].tokens.end());
    scoring[i].sampling.max_tokens = 2;
    if (i % 3 != 2) scoring[i].sampling.num_prompt_logprobs = static_cast<int32_t>(i % 3);
  }
  EngineOptions few_blocks = golden_options({});
  few_blocks.num_blocks = 24;  // 96 tokens, where each sequence wants up to 57: they preempt one another
  EngineOptions whole_prompts = golden_options({});
  whole_prompts.max_num_batched_tokens = 64;
  whole_prompts.enable_chunked_prefill = false;
  std::vector<EngineOptions> cases = {few_blocks, whole_prompts};
  for (const Layout& layout : {Layout{},
                               Layout{.tp = 3},
                               Layout{.tp = 1, .pp = 3},
                               Layout{.tp = 2, .pp = 2, .sequence_parallel = true}}) {
    cases.push_back(golden_options(layout));
  }
  for (const EngineOptions& options : cases) {
    SCOPED_TRACE(to_string(options.layout));
    std::vector<Output> scored = start(golden, {.engine = options})->generate(scoring);
    for (size_t i = 0; i < scored.size(); ++i) {
      SCOPED_TRACE("sequence " + std::to_string(i));
      EXPECT_EQ(scored[i].tokens.size(), 2u);
      if (i % 3 == 2) {
        EXPECT_TRUE(scored[i].prompt_tokens.empty());
        continue;
      }
      const std::vector<int32_t>& text = scoring[i].prompt;
      EXPECT_EQ(scored[i].prompt_tokens, std::vector<int32_t>(text.begin() + 1, text.end()));
      ASSERT_EQ(scored[i].prompt_logprobs.size(), text.size() - 1);
      size_t first = requests[i].prompt.size() - 1;
      for (size_t t = 0; t < written[i].tokens.size(); ++t) {
        EXPECT_NEAR(scored[i].prompt_logprobs[first + t], written[i].logprobs[t], kEpsilon) << "token " << t;
      }
    }
  }
}

// A sequence whose rules would crowd the others out of a step's inputs.
TEST(Engine, RulesBeyondTheirRoomAreRefused) {
  GoldenCase golden = load_golden("multiquery");
  auto replica = start(golden, {.engine = golden_options({})});
  auto request = greedy_request({1, 2, 3}, 4);
  request.sampling.rules = pack_rules({}, {}, std::vector<std::vector<int32_t>>(700, {7}));
  Output output = replica->generate({request}).front();
  EXPECT_EQ(output.finish, sched::FinishReason::kError);
  EXPECT_EQ(output.error.code(), StatusCode::kInvalidArgument) << output.error.to_string();
}

TEST(Engine, RefusesWhatCanNeverRun) {
  GoldenCase golden = load_golden("multiquery");
  auto replica = start(golden, {.engine = golden_options({}), .limits = {.max_queued_requests = 2}});
  auto sink = std::make_shared<OutputSink>();
  EXPECT_EQ(replica->engine().submit(greedy_request({}, 1), sink).status().code(),
            StatusCode::kInvalidArgument);
  auto too_long = greedy_request(std::vector<int32_t>(64, 1), 1);
  EXPECT_EQ(replica->engine().submit(too_long, sink).status().code(), StatusCode::kInvalidArgument);
  auto fits = greedy_request(std::vector<int32_t>(63, 1), 100);
  Output output = replica->generate({fits}).front();
  EXPECT_EQ(output.tokens.size(), 1u);
  EXPECT_EQ(output.finish, sched::FinishReason::kLength);
}

TEST(Engine, StagesMayBeUneven) {
  GoldenCase golden = load_golden("grouped");
  int64_t layers = golden.checkpoint->config().num_layers;
  EngineOptions options = golden_options({.pp = 2});
  options.layer_split = {layers - 1, 1};
  EXPECT_EQ(generate(golden, options, random_requests(golden, 6)),
            generate(golden, golden_options({}), random_requests(golden, 6)));
}

// One sequence runs, so that the next ones wait.
TEST(Engine, TheQueueIsBoundedInRequestsAndInTokens) {
  GoldenCase golden = load_golden("multiquery");
  for (bool by_tokens : {false, true}) {
    SCOPED_TRACE(by_tokens);
    ReplicaOptions options{.engine = golden_options({})};
    options.engine.max_num_seqs = 1;
    options.limits.max_queued_requests = by_tokens ? 100 : 2;
    options.limits.max_queued_tokens = by_tokens ? 10 : 0;
    auto replica = start(golden, options);
    auto submit = [&](const std::shared_ptr<OutputSink>& sink) {
      return replica->engine().submit(greedy_request({1, 2, 3, 4, 5}, 58), sink);
    };
    auto running = std::make_shared<HoldingSink>(1);
    auto first = submit(running);
    ASSERT_TRUE(first.ok());
    ASSERT_TRUE(running->wait_for_tokens(1, 60));
    std::vector<std::shared_ptr<OutputSink>> waiting(2);
    std::vector<sched::SequenceId> ids;
    for (auto& sink : waiting) {
      sink = std::make_shared<OutputSink>();
      auto id = submit(sink);
      ASSERT_TRUE(id.ok()) << id.status().to_string();
      ids.push_back(*id);
    }
    Status refused = submit(std::make_shared<OutputSink>()).status();
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
    // Another choice of one that has been let in is let in, too.
    sched::SequenceRequest choice = greedy_request({1, 2, 3, 4, 5}, 2);
    choice.joins = true;
    auto joined = std::make_shared<OutputSink>();
    EXPECT_TRUE(replica->engine().submit(choice, joined).ok());
    EXPECT_NE(refused.message().find(by_tokens ? "10 prompt tokens wait" : "2 requests wait"),
              std::string::npos)
        << refused.message();
    running->release();
    // Whoever leaves the queue makes room: by a cancellation, or because it runs.
    replica->engine().cancel(ids[0]);
    auto deadline = Deadline::after_seconds(60);
    auto late = std::make_shared<OutputSink>();
    while (!submit(late).ok() && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(waiting[1]->wait(60) && late->wait(60) && joined->wait(60));
    EXPECT_EQ(late->output().tokens.size(), 58u);
  }
}

// Longer than the limit on its own: it could never run otherwise.
TEST(Engine, ASinglePromptMayExceedTheQueuesTokens) {
  GoldenCase golden = load_golden("multiquery");
  auto replica = start(golden, {.engine = golden_options({}), .limits = {.max_queued_tokens = 3}});
  EXPECT_EQ(replica->generate({greedy_request(std::vector<int32_t>(30, 1), 3)}).front().tokens.size(), 3u);
}

TEST(Engine, AllocatedBlocksAreFull) {
  GoldenCase golden = load_golden("multiquery");
  EngineOptions options = golden_options({});
  options.max_model_len = 400;
  options.max_num_batched_tokens = 128;
  options.num_blocks = 700;
  auto replica = start(golden, {.engine = options});
  std::vector<std::shared_ptr<OutputSink>> sinks;
  auto last = std::make_shared<HoldingSink>(60);
  for (int i = 0; i < 16; ++i) {
    sinks.push_back(i < 15 ? std::make_shared<OutputSink>() : last);
    std::vector<int32_t> prompt(static_cast<size_t>(150 + 7 * i), 3 + i);
    ASSERT_TRUE(replica->engine().submit(greedy_request(std::move(prompt), 120), sinks.back()).ok());
  }
  double sum = 0.0;
  int count = 0;
  auto look = [&] {
    EngineStats stats = replica->engine().stats();
    if (stats.scheduler.num_running < options.max_num_seqs) return;
    sum += stats.kv_waste();
    ++count;
  };
  // As often as this thread gets to it, but once at least.
  while (!last->wait_for_tokens(60, 0.002)) look();
  look();
  last->release();
  while (!last->wait(0.002)) look();
  ASSERT_GT(count, 0);
  std::printf("KV waste: %.2f %% over %d samples\n", 100 * sum / count, count);
  EXPECT_LT(sum / count, 0.04);
}

}  // namespace
}  // namespace llm_dist::engine
