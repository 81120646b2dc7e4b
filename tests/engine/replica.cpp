#include "tests/engine/replica.h"

#include "comm/host_plane.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::engine {
namespace {

constexpr double kSetupSeconds = 60;
constexpr double kGenerateSeconds = 120;

}  // namespace

void OutputSink::on_generated(const Generated& generated) {
  std::lock_guard lock(mutex_);
  if (generated.prompt_position >= 0) {
    CHECK(output_.tokens.empty(), "the prompt's token {} after new ones", generated.prompt_position);
    CHECK_EQ(static_cast<size_t>(generated.prompt_position), output_.prompt_logprobs.size() + 1);
    output_.prompt_tokens.push_back(generated.token);
    output_.prompt_logprobs.push_back(generated.logprob);
    return;
  }
  if (generated.token >= 0) {
    output_.tokens.push_back(generated.token);
    output_.logprobs.push_back(generated.logprob);
  }
  CHECK(output_.finish == sched::FinishReason::kNone, "an event after the end of a sequence");
  output_.finish = generated.finish;
  if (generated.error != nullptr) output_.error = *generated.error;
  if (generated.finish != sched::FinishReason::kNone) output_.finished = Clock::now();
  changed_.notify_all();
}

bool OutputSink::wait(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, Deadline::after_seconds(seconds).when(), [&] {
    return output_.finish != sched::FinishReason::kNone;
  });
}

bool OutputSink::wait_for_tokens(size_t count, double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, Deadline::after_seconds(seconds).when(), [&] {
    return output_.tokens.size() >= count || output_.finish != sched::FinishReason::kNone;
  });
}

Output OutputSink::output() const {
  std::lock_guard lock(mutex_);
  return output_;
}

Replica::Replica(ReplicaOptions options) : options_(std::move(options)) {
  int size = options_.engine.layout.world_size();
  world_ = std::make_unique<comm::ThreadWorld>(size);
  ranks_.resize(static_cast<size_t>(size));
  ends_.resize(static_cast<size_t>(size));
}

Result<std::unique_ptr<Replica>> Replica::start(const checkpoint::Checkpoint& checkpoint,
                                                ReplicaOptions options) {
  std::unique_ptr<Replica> replica(new Replica(std::move(options)));
  int size = replica->options_.engine.layout.world_size();
  for (int rank = 0; rank < size; ++rank) {
    replica->threads_.emplace_back([raw = replica.get(), rank, &checkpoint] {
      Status status = raw->run_rank(rank, checkpoint);
      raw->ends_[static_cast<size_t>(rank)] = status;
      raw->note_ready(status);
    });
  }
  std::unique_lock lock(replica->mutex_);
  replica->changed_.wait(lock, [&] { return replica->num_ready_ >= size; });
  if (replica->setup_error_.ok()) return replica;
  return replica->setup_error_;
}

void Replica::note_ready(const Status& status) {
  std::lock_guard lock(mutex_);
  ++num_ready_;
  if (setup_error_.ok()) setup_error_ = status;
  changed_.notify_all();
}

Status Replica::run_rank(int index, const checkpoint::Checkpoint& checkpoint) {
  std::unique_ptr<comm::World> world = world_->join(index);
  std::unique_ptr<device::Backend> backend =
      device::make_cpu_backend({.threads = options_.engine.threads, .before_task = options_.before_task});
  if (options_.make_backend) {
    ASSIGN_OR_RETURN(backend, options_.make_backend(index));
  }
  std::unique_ptr<comm::HostChannel> channel;
  if (world->rank_info().size > 1) {
    ASSIGN_OR_RETURN(
        channel,
        comm::make_host_channel({.world = comm::host_world(*world, "", duration_of(kSetupSeconds))}));
  }
  EngineHooks hooks;
  if (options_.hooks) hooks = options_.hooks(index);
  if (options_.memory_first) {
    hooks.on_phase = [&world, also = hooks.on_phase](const char* phase) {
      if (also) also(phase);
      if (std::string_view(phase) != "warming up") return;
      Status met = world->barrier(Deadline::after_seconds(kSetupSeconds));
      CHECK(met.ok(), "{}", met.to_string());
    };
  }
  RankEngineParts parts{.world = world.get(),
                        .backend = backend.get(),
                        .ops = options_.ops,
                        .checkpoint = &checkpoint,
                        .hooks = hooks};
  if (options_.make_communicator) {
    parts.make_communicator =
        [&](std::span<const int> ranks, const std::string& name, const comm::GroupUse& use) {
          return options_.make_communicator(*world, ranks, name, use);
        };
  }
  ASSIGN_OR_RETURN(std::unique_ptr<RankEngine> rank, RankEngine::create(parts, options_.engine));
  ranks_[static_cast<size_t>(index)] = std::move(rank);
  RankEngine& self = *ranks_[static_cast<size_t>(index)];
  Status end;
  if (index == 0) {
    engine_ =
        Engine::start(self, channel.get(), options_.limits, hooks, [this](const Status&) { failed_ = true; });
    note_ready({});
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_; });
    lock.unlock();
    engine_->stop();
  } else {
    note_ready({});
    end = follow_plans(self, *channel, [] { return false; });
  }
  // Nobody's communicator goes before every rank has come to the end.
  if (end.ok() && !failed_) end = world->close(Deadline::after_seconds(kSetupSeconds));
  ranks_[static_cast<size_t>(index)].reset();
  return end;
}

std::vector<Status> Replica::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  return ends_;
}

Replica::~Replica() { stop(); }

std::vector<Output> Replica::generate(std::vector<sched::SequenceRequest> requests) {
  std::vector<std::shared_ptr<OutputSink>> sinks;
  for (sched::SequenceRequest& request : requests) {
    sinks.push_back(std::make_shared<OutputSink>());
    auto id = engine_->submit(std::move(request), sinks.back());
    CHECK(id.ok(), "{}", id.status().to_string());
  }
  std::vector<Output> outputs;
  for (const auto& sink : sinks) {
    CHECK(sink->wait(kGenerateSeconds), "a sequence did not end");
    outputs.push_back(sink->output());
  }
  return outputs;
}

sched::SequenceRequest greedy_request(std::vector<int32_t> prompt, int32_t max_tokens, uint64_t tag) {
  sched::SequenceRequest request{.prompt = std::move(prompt), .arrival = Clock::now()};
  request.sampling.temperature = 0.0f;
  request.sampling.seed = tag;
  request.sampling.max_tokens = max_tokens;
  return request;
}

}  // namespace llm_dist::engine
