// The load generator against a server with known delays, and what its report makes of them.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "launch/load_generator.h"
#include "launch/load_prompts.h"
#include "launch/load_report.h"
#include "launch/progress_bar.h"
#include "tests/launch/fake_server.h"

namespace llm_dist::launch {
namespace {

using std::chrono::milliseconds;
constexpr double kAtOnce = std::numeric_limits<double>::infinity();

bool go_on(const LoadProgress&) { return true; }

std::vector<std::string> bodies(FakeServer& server, size_t count, PromptOptions options = {}) {
  ServerAccess access = server.access();
  http::Client client;
  options.model = "fake-model";
  auto maker = PromptMaker::create(client, access, options);
  EXPECT_TRUE(maker.ok()) << maker.status().to_string();
  auto made = maker->make(count, 7);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(*made);
}

LoadSummary load(FakeServer& server, size_t count, LoadOptions options = {}, PromptOptions prompts = {}) {
  options.path = prompts.chat ? "/v1/chat/completions" : "/v1/completions";
  LoadRun run = run_load(server.access(), options, bodies(server, count, prompts), go_on);
  EXPECT_EQ(run.records.size(), count);
  return summarize(run, options.request_rate);
}

// Loads until what was measured is as expected: a busy machine may disturb some runs, but not all.
LoadSummary undisturbed_load(const std::function<LoadSummary()>& load_once,
                             const std::function<bool(const LoadSummary&)>& is_as_expected) {
  LoadSummary got = load_once();
  for (int again = 0; again < 15 && !is_as_expected(got); ++again) got = load_once();
  return got;
}

class KnownDelays : public testing::TestWithParam<bool> {};

// 150 ms, then 4 × 40 ms. The machine may be late, never early.
TEST_P(KnownDelays, AreMeasured) {
  FakeServer server({.first_token = milliseconds(150), .between_tokens = milliseconds(40), .num_tokens = 5});
  LoadSummary got = undisturbed_load([&] { return load(server, 6, {}, {.chat = GetParam()}); },
                                     [](const LoadSummary& run) {
                                       auto is_about = [](const Distribution& measured, double ms) {
                                         return measured.median > 0.96 * ms && measured.median < 1.4 * ms;
                                       };
                                       return is_about(run.ttft, 150) && is_about(run.itl, 40) &&
                                              is_about(run.tpot, 40) && is_about(run.e2el, 310) &&
                                              run.seconds < 1;
                                     });
  EXPECT_EQ(got.completed, 6u);
  EXPECT_EQ(got.failed, 0u);
  EXPECT_EQ(got.output_tokens, 30);
  EXPECT_EQ(got.input_tokens, 66) << "as the server's usage says";
  EXPECT_GE(got.ttft.median, 148);
  EXPECT_LE(got.ttft.median, 220);
  EXPECT_GE(got.itl.median, 38);
  EXPECT_LE(got.itl.median, 60);
  EXPECT_GE(got.tpot.median, 38);
  EXPECT_LE(got.tpot.median, 60);
  EXPECT_GE(got.e2el.median, 308);
  EXPECT_LE(got.e2el.median, 460);
  EXPECT_NEAR(got.tpot.mean * 4 + got.ttft.mean, got.e2el.mean, 1e-6);
  EXPECT_LT(got.seconds, 1.0) << "all at once, not one after the other";
  EXPECT_NEAR(got.output_throughput, 30 / got.seconds, 1e-9);
  EXPECT_NEAR(got.total_token_throughput, 96 / got.seconds, 1e-9);
  EXPECT_EQ(got.peak_concurrency, 6u);
}

INSTANTIATE_TEST_SUITE_P(Endpoints, KnownDelays, testing::Values(false, true));

TEST(Load, TokensAreTheUsagesNotTheChunks) {
  FakeServer server({.between_tokens = milliseconds(20), .num_tokens = 8, .tokens_a_chunk = 4});
  LoadRun run = run_load(server.access(), {.path = "/v1/completions"}, bodies(server, 1), go_on);
  ASSERT_EQ(run.records.size(), 1u);
  EXPECT_EQ(run.records[0].output_tokens, 8);
  EXPECT_EQ(run.records[0].between_tokens.size(), 1u) << "two chunks, one interval";
  LoadSummary got = summarize(run, kAtOnce);
  const RequestRecord& only = run.records[0];
  EXPECT_NEAR(got.itl.mean, only.between_tokens[0] * 1e3, 1e-6);
  EXPECT_NEAR(got.tpot.mean, (only.end_to_end - only.time_to_first_token) * 1e3 / 7, 1e-6);
}

TEST(Load, ConcurrencyIsLimited) {
  FakeServer server({.first_token = milliseconds(50)});
  LoadSummary got = load(server, 6, {.max_concurrency = 2});
  EXPECT_EQ(got.completed, 6u);
  EXPECT_EQ(got.peak_concurrency, 2u);
  EXPECT_GE(got.seconds, 0.148) << "three rounds of two";
  // From sending it, not from when it was due: two at a time fill the run, and no more.
  EXPECT_LE(got.ttft.mean, got.e2el.mean);
  EXPECT_LE(6 * got.e2el.mean * 1e-3, 2 * got.seconds + 1e-6);
}

TEST(Load, RequestsComeAtTheirRate) {
  FakeServer server({.num_tokens = 1});
  LoadOptions options{.request_rate = 50, .burstiness = 1000, .seed = 3};
  LoadSummary got =
      undisturbed_load([&] { return load(server, 11, options); },
                       [](const LoadSummary& run) { return run.seconds > 0.1 && run.seconds < 0.3; });
  EXPECT_EQ(got.completed, 11u);
  EXPECT_NEAR(got.seconds, 0.2, 0.1);
}

TEST(Load, RefusedRequestsAreFailedWithTheirKind) {
  FakeServer server({.refuse_from = 3});
  LoadSummary got = load(server, 5, {.max_concurrency = 1});
  EXPECT_EQ(got.completed, 3u);
  EXPECT_EQ(got.failed, 2u);
  EXPECT_EQ(got.errors, (std::map<std::string, size_t>{{"http_503 queue_full", 2}}));
  EXPECT_EQ(got.error_messages["http_503 queue_full"], "1024 requests wait already");
  EXPECT_EQ(got.output_tokens, 12) << "of those that were answered";
}

TEST(Load, EveryWayToFailHasAName) {
  auto kind_of = [](FakeBehaviour behaviour, LoadOptions options) {
    FakeServer server(behaviour);
    LoadSummary got = load(server, 1, options);
    EXPECT_EQ(got.failed, 1u);
    return got.errors.empty() ? "" : got.errors.begin()->first;
  };
  std::string cut = "connection";  // when it is cut off before the first token was read
  for (int attempt = 0; attempt < 15 && cut == "connection"; ++attempt)
    cut = kind_of({.ends_properly = false}, {});
  EXPECT_EQ(cut, "cut_off");
  EXPECT_EQ(kind_of({.says_usage = false}, {}), "no_usage");
  EXPECT_EQ(kind_of({.num_tokens = 0}, {}), "no_tokens");
  EXPECT_EQ(kind_of({.waits_forever = true}, {.request_timeout_seconds = 0.1}), "timeout");
  ServerAccess nobody{.base_url = "http://127.0.0.1:1", .headers = {}, .client = {}};
  LoadRun run = run_load(nobody, {.path = "/v1/completions"}, {"{}"}, go_on);
  ASSERT_EQ(run.records.size(), 1u);
  EXPECT_EQ(run.records[0].error_kind, "connection");
}

TEST(CompletionEvents, AnErrorThatIsNullIsNone) {
  CompletionEvent event = read_completion_event(R"({"error":null,"choices":[{"index":0,"text":"a"}]})");
  EXPECT_FALSE(event.failed);
  EXPECT_EQ(event.text, "a");
  event = read_completion_event(R"({"error":{"message":"full","code":"queue_full"},"choices":[]})");
  EXPECT_TRUE(event.failed);
  EXPECT_EQ(event.error.code, "queue_full");
}

TEST(Load, AnInterruptionKeepsWhatThereIs) {
  FakeServer server({.first_token = milliseconds(10), .between_tokens = milliseconds(10), .num_tokens = 3});
  // Two at once, then 20 s until the third.
  LoadOptions options{.path = "/v1/completions", .request_rate = 0.05, .burstiness = 1000};
  TimePoint begin = Clock::now();
  LoadRun run = run_load(server.access(), options, bodies(server, 3), [](const LoadProgress& progress) {
    return progress.ended < 1;
  });
  EXPECT_LT(seconds_between(begin, Clock::now()), 15);
  LoadSummary got = summarize(run, options.request_rate);
  EXPECT_EQ(got.completed, 1u);
  EXPECT_EQ(got.not_sent, 2u);
  EXPECT_TRUE(json::parse(load_summary_json(got))["interrupted"]);
  EXPECT_NE(load_summary_table(got).find("interrupted: 0 requests given up, 2 not sent"), std::string::npos);

  FakeServer stuck({.waits_forever = true});
  run = run_load(
      stuck.access(), {.path = "/v1/completions"}, bodies(stuck, 2), [](const auto&) { return false; });
  EXPECT_EQ(run.given_up, 2u);
  EXPECT_TRUE(run.records.empty());
}

TEST(ArrivalTimes, ArePoissonAtBurstiness1AndSteadyFarAboveIt) {
  auto spread = [](double burstiness) {
    std::vector<double> times = arrival_times(20001, 10, burstiness, 1);
    EXPECT_EQ(times.front(), 0);
    double mean = times.back() / 20000, squares = 0;
    for (size_t i = 1; i < times.size(); ++i) squares += std::pow(times[i] - times[i - 1] - mean, 2);
    EXPECT_NEAR(mean, 0.1, 0.005) << "10 a second, whatever the burstiness";
    return std::sqrt(squares / 20000) / mean;
  };
  EXPECT_NEAR(spread(1), 1, 0.05);
  EXPECT_NEAR(spread(0.25), 2, 0.15);
  EXPECT_NEAR(spread(100), 0.1, 0.01);
  EXPECT_EQ(arrival_times(3, kAtOnce, 1, 1), (std::vector<double>{0, 0, 0}));
}

TEST(Prompts, AreTokenIdsWhereTheServerTokenizes) {
  FakeServer server;
  auto made = bodies(server, 3, {.input_len = 40, .output_len = 9});
  std::set<std::string> different(made.begin(), made.end());
  EXPECT_EQ(different.size(), 3u);
  EXPECT_EQ(bodies(server, 3, {.input_len = 40, .output_len = 9}), made) << "the same seed";
  json body = json::parse(made[0]);
  EXPECT_EQ(body["prompt"].size(), 40u);
  for (const json& id : body["prompt"]) EXPECT_LT(id.get<int>(), 2000);
  EXPECT_EQ(body["max_tokens"], 9);
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  json chat = json::parse(bodies(server, 1, {.chat = true, .input_len = 5, .ignore_eos = false})[0]);
  std::string text = chat["messages"][0]["content"];
  EXPECT_EQ(std::count(text.begin(), text.end(), 't'), 5) << text;
  EXPECT_FALSE(chat.contains("ignore_eos")) << "not every server knows it";
}

TEST(Prompts, AreWordsWhereItDoesNot) {
  FakeServer server({.tokenizes = false});
  http::Client client;
  ServerAccess access = server.access();
  auto maker = PromptMaker::create(client, access, {.input_len = 12});
  ASSERT_TRUE(maker.ok());
  EXPECT_EQ(maker->kind(), "random words");
  std::string text = json::parse(maker->make(1, 0).value()[0])["prompt"];
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 11) << text;
  EXPECT_EQ(first_model(client, access).value(), "fake-model");
  auto varied = PromptMaker::create(client, access, {.input_len = 12, .range_ratio = 0.5});
  ASSERT_TRUE(varied.ok());
  std::set<int64_t> lengths;
  int64_t words = 0;
  const std::vector<std::string> made = varied->make(20, 0).value();
  for (const std::string& body : made) {
    text = json::parse(body)["prompt"];
    lengths.insert(1 + std::count(text.begin(), text.end(), ' '));
    words += 1 + std::count(text.begin(), text.end(), ' ');
  }
  EXPECT_EQ(words, 20 * 12);
  EXPECT_GE(*lengths.begin(), 6);
  EXPECT_LE(*lengths.rbegin(), 18);
  EXPECT_GT(lengths.size(), 4u);
}

TEST(Report, DistributionsAreThoseOfNumpy) {
  // numpy.percentile([10, 20, 30, 40], 90) = 37, and so on.
  Distribution got = distribution_of_seconds({0.04, 0.01, 0.03, 0.02});
  EXPECT_NEAR(got.mean, 25, 1e-9);
  EXPECT_NEAR(got.median, 25, 1e-9);
  EXPECT_NEAR(got.std, 11.180339887, 1e-6);
  EXPECT_NEAR(got.p90, 37, 1e-9);
  EXPECT_NEAR(got.p99, 39.7, 1e-9);
  EXPECT_EQ(distribution_of_seconds({0.5}).p90, 500);
}

TEST(Report, HasTheKeysThatUsersKnow) {
  LoadRun run;
  run.records.push_back({.time_to_first_token = 1,
                         .end_to_end = 2,
                         .between_tokens = {0.5},
                         .prompt_tokens = 3,
                         .output_tokens = 4});
  run.seconds = 2;
  json report = json::parse(load_summary_json(summarize(run, kAtOnce)));
  for (const char* key :
       {"request_throughput", "output_throughput", "total_token_throughput", "completed", "failed"})
    EXPECT_TRUE(report[key].is_number()) << key;
  for (const char* statistic : {"mean", "median", "std", "p90", "p99"})
    for (const char* latency : {"ttft", "tpot", "itl", "e2el"})
      EXPECT_TRUE(report[std::string(statistic) + "_" + latency + "_ms"].is_number()) << statistic << latency;
  EXPECT_EQ(report["request_rate"], "inf");
  EXPECT_EQ(report["median_ttft_ms"], 1000);
  EXPECT_NEAR(report["mean_tpot_ms"].get<double>(), 1000.0 / 3, 1e-9);
  EXPECT_EQ(report["request_throughput"], 0.5);
  EXPECT_EQ(report["total_token_throughput"], 3.5);
}

// Of answers of one token nothing lies between tokens.
TEST(Report, WhatWasNotMeasuredIsNoZero) {
  LoadRun run;
  run.records.push_back({.time_to_first_token = 1, .end_to_end = 1, .prompt_tokens = 3, .output_tokens = 1});
  run.seconds = 2;
  const LoadSummary summary = summarize(run, kAtOnce);
  const json report = json::parse(load_summary_json(summary));
  EXPECT_EQ(report["mean_ttft_ms"], 1000);
  for (const char* key : {"mean_tpot_ms", "p99_tpot_ms", "median_itl_ms"})
    EXPECT_TRUE(report[key].is_null()) << key;
  EXPECT_NE(load_summary_table(summary).find("time per output token               -         -"),
            std::string::npos)
      << load_summary_table(summary);
  EXPECT_EQ(load_sweep_line(summary).find("nan"), std::string::npos);
  EXPECT_EQ(load_plot_svg({summary, summary}, "one token").find("nan"), std::string::npos);
}

TEST(Progress, FillsUp) {
  EXPECT_EQ(progress_text(0, 100, 10), "[          ]   0/100");
  EXPECT_EQ(progress_text(55, 100, 10), "[#####     ]  55/100");
  EXPECT_EQ(progress_text(100, 100, 10), "[##########] 100/100");
}

}  // namespace
}  // namespace llm_dist::launch
