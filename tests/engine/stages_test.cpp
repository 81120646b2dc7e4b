// The stages of a pipeline work at the same time.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "src/device/cpu/cpu_stream.h"
#include "tests/comm/forwarding_communicator.h"
#include "tests/engine/requests.h"

namespace llm_dist::engine {
namespace {

// Where the stages of a pipeline meet. When all are at work all the time, stage s works on step k − s in slot
// k. So each step waits here, on its stage's stream, for the other stages' steps of the same slot: stages
// that work one after the other wait in vain.
class Slots {
 public:
  Slots(int num_stages, int num_slots) : num_stages_(num_stages), entered_(static_cast<size_t>(num_slots)) {}

  void enter(int stage, int step) {
    auto slot = static_cast<size_t>(stage + step);
    if (slot >= entered_.size()) return;
    std::unique_lock lock(mutex_);
    ++entered_[slot];
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return missed_ || all_there(slot); });
    if (!all_there(slot)) missed_ = true;
    changed_.notify_all();
  }
  // In every slot every stage found the others at work.
  bool all_met() const {
    std::lock_guard lock(mutex_);
    return !missed_ && all_there(entered_.size() - 1);
  }

 private:
  bool all_there(size_t slot) const {
    return entered_[slot] == std::min(num_stages_, static_cast<int>(slot) + 1);
  }

  const int num_stages_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool missed_ = false;  // nobody waits any more
  std::vector<int> entered_;
};

// Sends a stage to its slots, with the first layer of each step.
class SlotObserver : public kernels::OpObserver {
 public:
  SlotObserver(Slots& slots, int stage, int64_t num_layers)
      : slots_(slots), stage_(stage), num_layers_(num_layers) {}
  void open() { open_ = true; }
  void before(const kernels::OpCall& call, device::Stream& stream) override {
    if (!open_ || !std::holds_alternative<const kernels::AttentionParams*>(call.params)) return;
    auto step = static_cast<int>(num_calls_ / num_layers_);
    // The first step reads all prompts, and the next one needs what it yields.
    if (num_calls_++ % num_layers_ != 0 || step == 0) return;
    device::as_cpu(stream).enqueue([this, step] { slots_.enter(stage_, step - 1); });
  }
  void after(const kernels::OpCall&, device::Stream&) override {}

 private:
  Slots& slots_;
  const int stage_;
  const int64_t num_layers_;
  std::atomic<bool> open_{false};
  int64_t num_calls_ = 0;
};

void expect_stages_at_work_together(const GoldenCase& golden,
                                    const EngineOptions& options,
                                    const std::vector<sched::SequenceRequest>& requests,
                                    int num_slots) {
  const int pp = options.layout.pp;
  Slots slots(pp, num_slots);
  std::vector<std::unique_ptr<SlotObserver>> observers;
  for (int stage = 0; stage < pp; ++stage)
    observers.push_back(
        std::make_unique<SlotObserver>(slots, stage, golden.checkpoint->config().num_layers / pp));
  auto hooks = [&](int rank) { return EngineHooks{.observer = observers[static_cast<size_t>(rank)].get()}; };
  auto replica = start(golden, {.engine = options, .hooks = hooks});
  // All are there before the first of them runs.
  auto earlier = std::make_shared<HoldingSink>(1);
  ASSERT_TRUE(replica->engine().submit(greedy_request({1, 2}, 1), earlier).ok());
  ASSERT_TRUE(earlier->wait_for_tokens(1, 60));
  for (auto& observer : observers) observer->open();
  std::vector<std::shared_ptr<OutputSink>> sinks;
  for (const sched::SequenceRequest& request : requests) {
    sinks.push_back(std::make_shared<OutputSink>());
    ASSERT_TRUE(replica->engine().submit(request, sinks.back()).ok());
  }
  earlier->release();
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait(120));
    EXPECT_EQ(sink->output().finish, sched::FinishReason::kLength) << sink->output().error.to_string();
  }
  EXPECT_TRUE(slots.all_met());
}

// As many sequences as stages.
TEST(Stages, AllWorkAtTheSameTime) {
  constexpr int kTokens = 20;
  GoldenCase golden = load_golden("llama3");
  for (int pp : {2, 4}) {
    SCOPED_TRACE(format("{} stages", pp));
    const std::vector<sched::SequenceRequest> requests(static_cast<size_t>(pp),
                                                       greedy_request({1, 2, 3}, kTokens));
    expect_stages_at_work_together(golden, golden_options({.tp = 1, .pp = pp}), requests, (kTokens - 3) * pp);
  }
}

// A prompt in steps of two tokens.
EngineOptions options_for_chunks(const parallel::Layout& layout) {
  EngineOptions options = golden_options(layout);
  options.max_num_seqs = options.max_num_batched_tokens = 2;
  return options;
}
constexpr int kChunks = 30;
sched::SequenceRequest request_of_chunks() { return greedy_request(std::vector<int32_t>(2 * kChunks, 3), 2); }

TEST(Stages, AllReadAPromptAtTheSameTime) {
  GoldenCase golden = load_golden("llama3");
  for (int pp : {2, 4}) {
    SCOPED_TRACE(format("{} stages", pp));
    expect_stages_at_work_together(
        golden, options_for_chunks({.tp = 1, .pp = pp}), {request_of_chunks()}, kChunks - 2);
  }
}

// Makes its stage late, and looks which steps have ended before they come to it.
class LateStage : public kernels::OpObserver {
 public:
  explicit LateStage(int64_t num_layers) : num_layers_(num_layers) {}
  void open(Engine& engine) { engine_ = &engine; }
  void before(const kernels::OpCall& call, device::Stream& stream) override {
    if (engine_ == nullptr || !std::holds_alternative<const kernels::AttentionParams*>(call.params)) return;
    if (num_calls_++ % num_layers_ != 0) return;
    device::as_cpu(stream).enqueue([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (static_cast<int64_t>(engine_.load()->stats().steps) > num_steps_++) ended_early_ = true;
    });
  }
  void after(const kernels::OpCall&, device::Stream&) override {}
  bool ended_early() const { return ended_early_; }

 private:
  const int64_t num_layers_;
  std::atomic<Engine*> engine_{nullptr};
  int64_t num_calls_ = 0;
  int64_t num_steps_ = 0;  // that this stage has run
  std::atomic<bool> ended_early_{false};
};

// Also one that samples nothing: how long steps take, what is in flight and when a prompt has been read
// follow from it.
TEST(Stages, AStepEndsWhenTheLastStageHasRunIt) {
  GoldenCase golden = load_golden("llama3");
  for (const parallel::Layout layout :
       {parallel::Layout{.tp = 1, .pp = 2}, parallel::Layout{.tp = 1, .pp = 4}, {.tp = 2, .pp = 2}}) {
    SCOPED_TRACE(format("TP {} PP {}", layout.tp, layout.pp));
    LateStage late(golden.checkpoint->config().num_layers / layout.pp);
    const int last = layout.tp * (layout.pp - 1);
    auto hooks = [&](int rank) { return EngineHooks{.observer = rank == last ? &late : nullptr}; };
    auto replica = start(golden, {.engine = options_for_chunks(layout), .hooks = hooks});
    late.open(replica->engine());
    EXPECT_EQ(replica->generate({request_of_chunks()}).front().tokens.size(), 2u);
    EXPECT_GE(replica->engine().stats().steps, uint64_t{kChunks});
    EXPECT_FALSE(late.ended_early());
  }
}

// A group that notes on which streams it sums and sends, and says that kernels move its messages.
class NotingGroup : public comm::ForwardingCommunicator {
 public:
  NotingGroup(std::unique_ptr<comm::Communicator> inner, std::atomic<int>& num_sends)
      : ForwardingCommunicator(std::move(inner)), num_sends_(num_sends) {}
  void all_reduce(const Tensor& data, comm::ReduceOp op, device::Stream& stream) override {
    computes_on() = &stream;
    ForwardingCommunicator::all_reduce(data, op, stream);
  }
  void send(const Tensor& data, int peer, device::Stream& stream) override {
    EXPECT_EQ(&stream, computes_on()) << info().name;
    ++num_sends_;
    ForwardingCommunicator::send(data, peer, stream);
  }
  void recv(const Tensor& data, int peer, device::Stream& stream) override {
    EXPECT_NE(&stream, computes_on()) << info().name;
    ForwardingCommunicator::recv(data, peer, stream);
  }
  bool moves_by_kernels() const override { return true; }

 private:
  // The stream of the calling rank's steps: of the thread that issues them.
  static device::Stream*& computes_on() {
    thread_local device::Stream* stream = nullptr;
    return stream;
  }

  std::atomic<int>& num_sends_;
};

// Where kernels move messages, stages of tensor groups send before their next step.
TEST(Stages, OfTensorGroupsSendWithTheirSteps) {
  GoldenCase golden = load_golden("llama3");
  const auto requests = random_requests(golden, 12);
  for (const parallel::Layout layout :
       {parallel::Layout{.tp = 2, .pp = 2}, parallel::Layout{.tp = 2, .pp = 3}}) {
    SCOPED_TRACE(format("{} stages", layout.pp));
    const EngineOptions options = golden_options(layout);
    std::atomic<int> num_sends{0};
    auto replica = start(
        golden,
        {.engine = options,
         .make_communicator = [&](comm::World& world,
                                  std::span<const int> ranks,
                                  const std::string& name,
                                  const comm::GroupUse&) -> Result<std::unique_ptr<comm::Communicator>> {
           ASSIGN_OR_RETURN(auto inner, world.make_communicator(ranks, name));
           return std::unique_ptr<comm::Communicator>(
               std::make_unique<NotingGroup>(std::move(inner), num_sends));
         }});
    EXPECT_EQ(tokens_of(replica->generate(requests)), generate(golden, options, requests));
    EXPECT_GT(num_sends, 0);
  }
}

// A model whose layers take a fixed time and whose other ops take none: what is left is the pipeline's
// schedule.

constexpr auto kLayerTime = std::chrono::milliseconds(12);

template <typename Params>
void nothing(kernels::OpState&, device::Stream&, const Params&) {}

void sleep_as_long_as_a_layer(kernels::OpState&, device::Stream& stream, const kernels::AttentionParams&) {
  device::as_cpu(stream).enqueue([] { std::this_thread::sleep_for(kLayerTime); });
}

kernels::OpTable sleeping_ops() {
  kernels::OpTable ops = kernels::cpu_ops();
  ops.embedding = nothing;
  ops.rms_norm = nothing;
  ops.add_rms_norm = nothing;
  ops.add = nothing;
  ops.linear = nothing;
  ops.linear_silu_and_mul = nothing;
  ops.rope_append = nothing;
  ops.attention = sleep_as_long_as_a_layer;
  return ops;
}

struct Run {
  double seconds = 0.0;
  double num_steps = 0.0;
};

// One sequence a stage, so that each is a micro-batch.
Run run_stages(const GoldenCase& golden, const kernels::OpTable& ops, int pp) {
  auto replica = start(golden, {.engine = golden_options({.tp = 1, .pp = pp}), .ops = &ops});
  std::vector<sched::SequenceRequest> requests;
  requests.reserve(static_cast<size_t>(pp));
  for (int i = 0; i < pp; ++i) requests.push_back(greedy_request({1, 2, 3}, 20));
  TimePoint begin = Clock::now();
  std::vector<Output> outputs = replica->generate(std::move(requests));
  return {seconds_between(begin, outputs.back().finished),
          static_cast<double>(replica->engine().stats().steps)};
}

// Time against (m + p − 1) t: m micro-batches over p stages, t a p-th of what one stage takes for all layers
// (a busy machine oversleeps).
double pipeline_overhead(const GoldenCase& golden, const kernels::OpTable& ops, int pp) {
  Run alone = run_stages(golden, ops, 1);
  Run staged = run_stages(golden, ops, pp);
  EXPECT_GE(staged.num_steps, 18.0 * pp) << "the sequences share micro-batches";
  double stage_seconds = alone.seconds / alone.num_steps / pp;
  return staged.seconds / ((staged.num_steps + pp - 1) * stage_seconds);
}

// Only on a machine that is left alone: a late thread is a late step.
TEST(Stages, TakeTheTimeThatTheirScheduleTakes) {
  if (std::getenv("LLM_DIST_FULL") == nullptr) GTEST_SKIP() << "with LLM_DIST_FULL only";
  GoldenCase golden = load_golden("llama3");
  kernels::OpTable ops = sleeping_ops();
  for (int pp : {2, 4}) {
    double best = 10.0;  // a busy machine may disturb a run
    for (int attempt = 0; attempt < 4 && best > 1.15; ++attempt)
      best = std::min(best, pipeline_overhead(golden, ops, pp));
    std::printf("%d stages: %.3f of (m + p - 1) t\n", pp, best);
    EXPECT_LE(best, 1.15) << pp << " stages";
  }
}

}  // namespace
}  // namespace llm_dist::engine
