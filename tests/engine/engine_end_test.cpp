// How an engine ends: with its world, or because it is told to.
#include <gtest/gtest.h>

#include <future>
#include <string_view>
#include <thread>

#include "src/device/cpu/cpu_stream.h"
#include "tests/engine/requests.h"

namespace llm_dist::engine {
namespace {

using parallel::Layout;

// Slow enough that an abort finds work under way.
void slow_down(const std::string&, uint64_t) { std::this_thread::sleep_for(std::chrono::microseconds(300)); }

class Failure : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Failure,
    testing::Values(Layout{.tp = 2, .pp = 1}, Layout{.tp = 1, .pp = 2}, Layout{.tp = 2, .pp = 2}),
    [](const auto& named) {
      return "tp" + std::to_string(named.param.tp) + "pp" + std::to_string(named.param.pp);
    });

// Not when the step's own deadline comes, in ten minutes.
TEST_P(Failure, AnAbortedWorldEndsEveryStreamAtOnce) {
  GoldenCase golden = load_golden("grouped");
  auto replica = start(golden, {.engine = golden_options(GetParam()), .before_task = slow_down});
  auto first = std::make_shared<HoldingSink>(2);
  std::vector<std::shared_ptr<OutputSink>> sinks = {first};
  for (sched::SequenceRequest& request : random_requests(golden, 12)) {
    request.sampling.max_tokens = 60;
    ASSERT_TRUE(replica->engine().submit(request, sinks.back()).ok());
    sinks.push_back(std::make_shared<OutputSink>());
  }
  sinks.pop_back();
  ASSERT_TRUE(first->wait_for_tokens(2, 60));
  replica->abort(aborted("rank 1 has died"));
  first->release();
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait(60));
    Output output = sink->output();
    EXPECT_EQ(output.finish, sched::FinishReason::kError);
    EXPECT_NE(output.error.message().find("rank 1 has died"), std::string::npos) << output.error.to_string();
  }
  EXPECT_EQ(replica->engine().submit(greedy_request({1}, 1), sinks[0]).status().code(),
            StatusCode::kUnavailable);
  std::vector<Status> ends = replica->stop();
  for (size_t rank = 1; rank < ends.size(); ++rank) EXPECT_FALSE(ends[rank].ok()) << "rank " << rank;
  EXPECT_TRUE(replica->failed());
}

TEST_P(Failure, AnIdleWorldNoticesToo) {
  GoldenCase golden = load_golden("multiquery");
  auto replica = start(golden, {.engine = golden_options(GetParam())});
  replica->abort(aborted("rank 1 has died"));
  for (auto deadline = Deadline::after_seconds(60); !replica->failed() && !deadline.expired();)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(replica->failed());
  EXPECT_FALSE(replica->stop()[1].ok());
}

// A rank whose own stream fails in the last step under way: no step comes in which it would notice, and its
// peers wait for it.
struct FailingStream {
  Layout layout;
  int victim;
};
class OneStream : public testing::TestWithParam<FailingStream> {};
INSTANTIATE_TEST_SUITE_P(Layouts,
                         OneStream,
                         testing::Values(FailingStream{{.tp = 2, .pp = 1}, 1},
                                         FailingStream{{.tp = 1, .pp = 2}, 1},
                                         FailingStream{{.tp = 1, .pp = 2}, 0}),
                         [](const auto& named) {
                           return format("tp{}pp{}rank{}",
                                         named.param.layout.tp,
                                         named.param.layout.pp,
                                         named.param.victim);
                         });

TEST_P(OneStream, ThatFailsIsNoticedWithoutAnotherStep) {
  const int victim = GetParam().victim;
  GoldenCase golden = load_golden("grouped");
  std::promise<Replica*> started;
  ReplicaOptions options{.engine = golden_options(GetParam().layout)};
  options.engine.step_deadline_seconds = 600;
  options.hooks = [&](int rank) {
    EngineHooks hooks;
    hooks.on_phase = [&, rank](const char* phase) {
      if (rank != victim || std::string_view(phase) != "prefill") return;
      device::CpuStream& stream = device::as_cpu(started.get_future().get()->rank(victim).ops().stream());
      stream.enqueue([&stream] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the step has been issued by then
        stream.fail(internal_error("the matrix unit is on fire"));
      });
    };
    return hooks;
  };
  auto replica = start(golden, options);
  started.set_value(replica.get());
  auto sink = std::make_shared<OutputSink>();
  ASSERT_TRUE(replica->engine().submit(greedy_request({5, 6, 7}, 1), sink).ok());
  ASSERT_TRUE(sink->wait(60));  // long before the step's own deadline
  EXPECT_EQ(sink->output().finish, sched::FinishReason::kError);
  const Status ended = replica->stop()[static_cast<size_t>(victim)];
  const Status& told = victim == 0 ? sink->output().error : ended;
  EXPECT_NE(told.message().find("on fire"), std::string::npos) << told.to_string();
}

TEST(Engine, StopEndsRunningSequences) {
  GoldenCase golden = load_golden("grouped");
  auto replica = start(golden, {.engine = golden_options({.tp = 2, .pp = 2}), .before_task = slow_down});
  auto sink = std::make_shared<HoldingSink>(2);
  ASSERT_TRUE(replica->engine().submit(greedy_request({5, 6, 7}, 60), sink).ok());
  ASSERT_TRUE(sink->wait_for_tokens(2, 60));
  std::jthread releaser([&] {  // once the engine has been told
    auto told = [&] {
      auto late = replica->engine().submit(greedy_request({1}, 1), std::make_shared<OutputSink>());
      return late.status().code() == StatusCode::kUnavailable;
    };
    while (!told()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    sink->release();
  });
  for (const Status& end : replica->stop()) EXPECT_TRUE(end.ok()) << end.to_string();
  EXPECT_EQ(sink->output().finish, sched::FinishReason::kError);
  EXPECT_EQ(sink->output().error.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace llm_dist::engine
