#include "src/engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

#include "src/base/log.h"

namespace llm_dist::engine {
namespace {

// How often, in steps, the ranks' measurements are looked at.
constexpr uint64_t kMeterSteps = 64;
// A request of many choices finds room even where few may wait.
constexpr int64_t kLeastCommands = 1024;
static_assert(std::is_trivially_copyable_v<RankMeters> && sizeof(RankMeters) <= comm::kMaxReportBytes);

}  // namespace

sched::SchedulerOptions scheduler_options(const EngineOptions& options) {
  return {.num_blocks = static_cast<int32_t>(options.num_blocks),
          .block_size = static_cast<int32_t>(options.block_size),
          .max_num_seqs = static_cast<int32_t>(options.max_num_seqs),
          .max_num_batched_tokens = static_cast<int32_t>(options.max_num_batched_tokens),
          .max_model_len = static_cast<int32_t>(options.max_model_len),
          .enable_chunked_prefill = options.enable_chunked_prefill,
          .num_micro_batches = options.num_micro_batches(),
          .max_steps_in_flight = options.max_steps_in_flight(),
          .policy = options.priority_scheduling ? sched::SchedulingPolicy::kPriority
                                                : sched::SchedulingPolicy::kFcfs};
}

Engine::Engine(RankEngine& rank,
               comm::HostChannel* channel,
               const EngineLimits& limits,
               const EngineHooks& hooks,
               std::function<void(const Status&)> on_failure)
    : rank_(rank),
      channel_(channel),
      limits_(limits),
      hooks_(hooks),
      on_failure_(std::move(on_failure)),
      scheduler_(scheduler_options(rank.options())),
      // A queued request may be followed by its cancellation.
      commands_(static_cast<size_t>(
          std::max(kLeastCommands, 2 * limits.max_queued_requests + 2 * rank.options().max_num_seqs))),
      pace_(rank.warm_up_pace()),
      book_(rank.options().layout.world_size()) {
  flights_.reserve(static_cast<size_t>(rank.options().max_steps_in_flight()));
  tokens_.reserve(static_cast<size_t>(rank.options().padded_samples()));
  update_stats();
  board_.change([&](EngineStats& stats) { stats.ranks = book_.ranks(); });
}

std::unique_ptr<Engine> Engine::start(RankEngine& rank,
                                      comm::HostChannel* channel,
                                      const EngineLimits& limits,
                                      const EngineHooks& hooks,
                                      std::function<void(const Status&)> on_failure) {
  std::unique_ptr<Engine> engine(new Engine(rank, channel, limits, hooks, std::move(on_failure)));
  engine->thread_ = std::thread([raw = engine.get()] { raw->run(); });
  pthread_setname_np(engine->thread_.native_handle(), "engine");
  return engine;
}

Engine::~Engine() { stop(); }

void Engine::stop() {
  stopping_ = true;
  Command wake;
  commands_.try_push(wake);
  if (thread_.joinable()) thread_.join();
}

Result<sched::SequenceId> Engine::submit(sched::SequenceRequest request, std::shared_ptr<SequenceSink> sink) {
  const EngineOptions& options = rank_.options();
  if (stopping_ || failed_) return unavailable("the engine is stopping");
  if (request.prompt.empty()) return invalid_argument("the prompt is empty");
  if (static_cast<int64_t>(request.prompt.size()) >= options.max_model_len) {
    return invalid_argument(
        format("the prompt has {} tokens; with at least one token of output the most is {} "
               "(--max-model-len {})",
               request.prompt.size(),
               options.max_model_len - 1,
               options.max_model_len));
  }
  auto num_tokens = static_cast<int64_t>(request.prompt.size());
  RETURN_IF_ERROR(enter_queue(request));
  request.id = next_id_.fetch_add(1);
  sched::SequenceId id = request.id;
  Command command{Command::Kind::kSubmit, std::move(request), std::move(sink)};
  ++pending_;
  if (!commands_.try_push(command)) {
    --pending_;
    leave_queue({.requests = 1, .tokens = num_tokens});
    return commands_.closed() ? unavailable("the engine is stopping")
                              : resource_exhausted("the engine's command queue is full");
  }
  return id;
}

Status Engine::enter_queue(const sched::SequenceRequest& request) {
  auto num_tokens = static_cast<int64_t>(request.prompt.size());
  int64_t requests = queued_requests_.fetch_add(1);
  int64_t tokens = queued_tokens_.fetch_add(num_tokens);
  bool too_many = requests >= limits_.max_queued_requests;
  bool too_long =
      limits_.max_queued_tokens > 0 && requests > 0 && tokens + num_tokens > limits_.max_queued_tokens;
  if (request.joins || (!too_many && !too_long)) return ok_status();
  leave_queue({.requests = 1, .tokens = num_tokens});
  if (too_many) return resource_exhausted(format("the queue is full: {} requests wait", requests));
  return resource_exhausted(
      format("the queue is full: requests with {} prompt tokens wait, and {} more would exceed {}",
             tokens,
             num_tokens,
             limits_.max_queued_tokens));
}

void Engine::leave_queue(const Backlog& left) {
  queued_requests_ -= left.requests;
  queued_tokens_ -= left.tokens;
}

// What the scheduler has started, or dropped before it started, no longer waits.
void Engine::note_started() {
  sched::SchedulerStats stats = scheduler_.stats();
  leave_queue({.requests = unstarted_.requests - stats.num_unstarted,
               .tokens = unstarted_.tokens - stats.unstarted_tokens});
  unstarted_ = {.requests = stats.num_unstarted, .tokens = stats.unstarted_tokens};
}

void Engine::cancel(sched::SequenceId id) {
  Command command{.kind = Command::Kind::kCancel};
  command.request.id = id;
  commands_.push(std::move(command), step_deadline());
}

void Engine::run() {
  Status status = loop();
  failed_ = !status.ok();
  stopping_ = true;
  if (failed_) rank_.abort(status);
  board_.change([&](EngineStats& stats) { stats.failed = failed_; });
  if (failed_ && on_failure_) on_failure_(status);
  finish_all(failed_ ? status : unavailable("the server is stopping"));
  if (failed_) return;
  plan_.clear();
  plan_.shutdown = true;
  status = publish(plan_);
  if (!status.ok()) log_warning("other ranks were not told to end: {}", status.to_string());
}

Status Engine::loop() {
  while (true) {
    accept();
    if (stopping_ && flights_.empty()) return ok_status();
    bool issued = false;
    if (!stopping_) {
      ASSIGN_OR_RETURN(issued, issue_step());
    }
    bool full = static_cast<int>(flights_.size()) >= rank_.options().max_steps_in_flight();
    if (!flights_.empty() && (!issued || full || rank_.runner().complete(flights_.front().step))) {
      RETURN_IF_ERROR(collect_oldest());
    } else if (!issued && !stopping_) {
      RETURN_IF_ERROR(wait_for_work());
    }
  }
}

void Engine::accept() {
  while (auto command = commands_.try_pop()) apply(*command);
}

void Engine::apply(Command& command) {
  sched::SequenceId id = command.request.id;
  if (command.kind == Command::Kind::kSubmit) {
    auto num_tokens = static_cast<int64_t>(command.request.prompt.size());
    Status status = scheduler_.add(std::move(command.request));
    if (status.ok()) {
      ++unstarted_.requests;
      unstarted_.tokens += num_tokens;
      sinks_.emplace(id, std::move(command.sink));
      return;
    }
    --pending_;
    leave_queue({.requests = 1, .tokens = num_tokens});
    command.sink->on_generated({.id = id, .finish = sched::FinishReason::kError, .error = &status});
  } else if (command.kind == Command::Kind::kCancel && scheduler_.cancel(id)) {
    note_started();
    note_finished(id);
  }
}

void Engine::note_finished(sched::SequenceId id) {
  sinks_.erase(id);
  --pending_;
}

// An idle engine also notices that a peer has died: nothing else would.
Status Engine::wait_for_work() {
  if (hooks_.on_phase) hooks_.on_phase("idle");
  update_stats();
  RETURN_IF_ERROR(read_meters());
  auto command = commands_.pop(Deadline::after_seconds(limits_.idle_poll_seconds));
  if (command) apply(*command);
  return rank_.poll();
}

Result<bool> Engine::issue_step() {
  if (!scheduler_.schedule(plan_)) return false;
  if (!plan_.starts.empty()) note_started();
  TimePoint issued = Clock::now();
  if (flights_.empty()) active_since_ = issued;
  flights_.push_back({plan_.step, plan_.num_tokens(), issued});
  // Before it runs: who watches for a hang knows from the start how long it may take.
  board_.change([&](EngineStats& stats) { stats.expected_step_seconds = expected_step_seconds(); });
  RETURN_IF_ERROR(publish(plan_));
  RETURN_IF_ERROR(rank_.runner().execute(plan_));
  return true;
}

Status Engine::publish(const sched::StepPlan& plan) {
  if (channel_ == nullptr) return ok_status();
  sched::encode(plan, encoded_);
  return channel_->publish(encoded_, step_deadline());
}

// What fails on a stream of this rank, or ends with a peer, may be nothing that the records themselves wait
// for.
Result<std::span<const kernels::SampleRecord>> Engine::wait_for_records(uint64_t step) {
  const Deadline deadline = step_deadline();
  while (true) {
    const Deadline look = Deadline::after_seconds(limits_.idle_poll_seconds);
    auto records = rank_.runner().collect(step, Deadline::at(std::min(look.when(), deadline.when())));
    if (records.status().code() != StatusCode::kDeadlineExceeded || deadline.expired()) return records;
    RETURN_IF_ERROR(rank_.poll());
  }
}

Status Engine::collect_oldest() {
  Flight flight = flights_.front();
  ASSIGN_OR_RETURN(std::span<const kernels::SampleRecord> records, wait_for_records(flight.step));
  flights_.erase(flights_.begin());
  TimePoint collected = Clock::now();
  pace_.note(flight.tokens, seconds_between(active_since_, collected));
  active_seconds_ += seconds_between(active_since_, collected);
  active_since_ = collected;
  book_.note_active(flight.step, active_seconds_);
  tokens_.clear();
  for (const kernels::SampleRecord& record : records) tokens_.push_back(record.token);
  scheduler_.retire(flight.step, tokens_, events_);
  for (const sched::TokenEvent& event : events_) deliver(event, records);
  board_.change([&](EngineStats& stats) {
    ++stats.steps;
    stats.step_seconds.add(seconds_between(flight.issued, Clock::now()));
    stats.last_progress_ns = now_ns();
    stats.expected_step_seconds = expected_step_seconds();
    stats.scheduler = scheduler_.stats();
    if (stats.scheduler.allocated_kv_tokens > 0) {
      stats.kv_waste_sum += stats.kv_waste();
      ++stats.kv_waste_steps;
    }
  });
  return flight.step >= meters_read_at_ + kMeterSteps ? read_meters() : ok_status();
}

double Engine::expected_step_seconds() const {
  double most = 0;
  for (const Flight& flight : flights_) most = std::max(most, pace_.expected_seconds(flight.tokens));
  return most;
}

// This rank's own, and what the others have sent.
Status Engine::read_meters() {
  meters_read_at_ = scheduler_.last_step();
  book_.note(0, rank_.meters());
  while (channel_ != nullptr) {
    ASSIGN_OR_RETURN(std::optional<comm::HostReport> report, channel_->try_take_report());
    if (!report) break;
    RankMeters theirs;
    if (report->bytes.size() != sizeof theirs)
      return data_loss(format("rank {} sent a report of {} bytes", report->rank, report->bytes.size()));
    std::memcpy(&theirs, report->bytes.data(), sizeof theirs);
    book_.note(report->rank, theirs);
  }
  board_.change([&](EngineStats& stats) {
    stats.ranks = book_.ranks();
    stats.rank_step_skew_seconds = book_.step_skew_seconds();
    stats.pipeline_bubble_fraction = rank_.options().layout.pp > 1 ? book_.bubble_fraction() : 0;
  });
  return ok_status();
}

void Engine::deliver(const sched::TokenEvent& event, std::span<const kernels::SampleRecord> records) {
  auto found = sinks_.find(event.id);
  if (found == sinks_.end()) return;
  const kernels::SampleRecord& record = records[static_cast<size_t>(event.sample_index)];
  auto num_top = static_cast<size_t>(record.num_top);
  found->second->on_generated({.id = event.id,
                               .token = event.token,
                               .prompt_position = event.prompt_position,
                               .logprob = record.logprob,
                               .top_ids = {record.top_ids, num_top},
                               .top_logprobs = {record.top_logprobs, num_top},
                               .finish = event.finish,
                               .started = event.started});
  if (event.finish != sched::FinishReason::kNone) note_finished(event.id);
}

void Engine::finish_all(const Status& status) {
  auto fail = [&](sched::SequenceId id, SequenceSink& sink) {
    sink.on_generated({.id = id, .finish = sched::FinishReason::kError, .error = &status});
    --pending_;
  };
  commands_.close();  // whoever submits from here on is told so
  while (auto command = commands_.try_pop()) {
    if (command->kind == Command::Kind::kSubmit) fail(command->request.id, *command->sink);
  }
  for (auto& [id, sink] : sinks_) fail(id, *sink);
  sinks_.clear();
}

void Engine::update_stats() {
  board_.change([&](EngineStats& stats) { stats.scheduler = scheduler_.stats(); });
}

EngineStats Engine::stats() const { return board_.read(); }

namespace {

// What a rank has measured since its last report goes to rank 0. One that finds no room is made up for by the
// next: all of them count from the start.
void report_meters(RankEngine& rank, comm::HostChannel& channel, uint64_t& reported_through) {
  RankMeters meters = rank.meters();
  if (meters.through_step == reported_through) return;
  Status status = channel.report(std::as_bytes(std::span(&meters, 1)));
  if (status.ok()) reported_through = meters.through_step;
}

}  // namespace

Status follow_plans(RankEngine& rank, comm::HostChannel& channel, const std::function<bool()>& stop) {
  constexpr double kPollSeconds = 0.2;
  sched::StepPlan plan;
  uint64_t reported_through = 0;
  while (!stop()) {
    auto message = channel.receive(Deadline::after_seconds(kPollSeconds));
    if (!message.ok()) {
      if (message.status().code() != StatusCode::kDeadlineExceeded) return message.status();
      RETURN_IF_ERROR(rank.poll());
      report_meters(rank, channel, reported_through);
      continue;
    }
    RETURN_IF_ERROR(sched::decode(*message, plan));
    if (plan.shutdown)
      return rank.runner().drain(Deadline::after_seconds(rank.options().step_deadline_seconds));
    RETURN_IF_ERROR(rank.runner().execute(plan));
    if (plan.step >= reported_through + kMeterSteps) report_meters(rank, channel, reported_through);
  }
  return ok_status();
}

}  // namespace llm_dist::engine
