#include "src/engine/model_runner.h"

#include "src/engine/step_profile.h"
#include "src/engine/step_trace.h"

namespace llm_dist::engine {
namespace {
using kernels::CallKind;

constexpr int64_t kRecordWords = kernels::kSampleRecordWords;

Tensor records_like(int64_t num_samples) {
  return Tensor::contiguous(nullptr, DType::kI32, {num_samples, kRecordWords});
}
}  // namespace

ModelRunner::ModelRunner(const RunnerParts& parts, const EngineOptions& options)
    : parts_(parts),
      options_(options),
      mirror_(static_cast<int32_t>(options.max_num_seqs),
              static_cast<int32_t>(options.max_blocks_per_sequence()),
              static_cast<int32_t>(options.block_size),
              static_cast<int32_t>(parts.kv_cache->num_blocks())),
      graphs_(*parts.backend, options.graph_sizes) {}

int64_t ModelRunner::history_bytes(const EngineOptions& options) {
  return options.max_num_seqs * options.max_model_len * dtype_bytes(DType::kI32);
}

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(const RunnerParts& parts,
                                                         const EngineOptions& options) {
  std::unique_ptr<ModelRunner> runner(new ModelRunner(parts, options));
  RETURN_IF_ERROR(runner->allocate());
  return runner;
}

Status ModelRunner::allocate() {
  device::Backend& backend = *parts_.backend;
  ASSIGN_OR_RETURN(inputs_, StepInputs::create(backend, options_));
  ASSIGN_OR_RETURN(meter_, StepMeter::create(backend));
  ASSIGN_OR_RETURN(history_buffer_, backend.allocate(history_bytes(options_), device::MemoryKind::kDevice));
  history_ = history_buffer_.view(DType::kI32, {options_.max_num_seqs, options_.max_model_len});
  ring_.resize(static_cast<size_t>(options_.max_steps_in_flight()) + 1);
  int64_t result_bytes = options_.padded_samples() * static_cast<int64_t>(sizeof(kernels::SampleRecord));
  for (InFlight& entry : ring_) {
    ASSIGN_OR_RETURN(entry.results, backend.allocate(result_bytes, device::MemoryKind::kPinned));
    entry.done = backend.make_event();
  }
  return ok_status();
}

Status ModelRunner::warm_up(int64_t tokens) {
  ASSIGN_OR_RETURN(PreparedStep step, inputs_->prepare_padding(tokens, mirror_, stream()));
  step.view.kv = parts_.kv_cache->layers();
  return run_padding(step).status();
}

Status ModelRunner::warm_up_decodes(int64_t sequences) {
  ASSIGN_OR_RETURN(PreparedStep step, prepare(sched::StepPlan{}, sequences));
  return run_padding(step).status();
}

Result<Tensor> ModelRunner::run_padding(PreparedStep& step) {
  parts_.model->plan(step.view);
  Tensor out = forward(step);
  if (mesh().last_stage()) sample(out, step);
  RETURN_IF_ERROR(stream().synchronize(Deadline::after_seconds(options_.step_deadline_seconds)));
  return out;
}

Status ModelRunner::capture_graphs() {
  const std::vector<int64_t>& sizes = graphs_.sizes();
  for (auto bucket = sizes.rbegin(); bucket != sizes.rend(); ++bucket) RETURN_IF_ERROR(capture(*bucket));
  return ok_status();
}

Status ModelRunner::capture(int64_t bucket) {
  ASSIGN_OR_RETURN(PreparedStep step, prepare(sched::StepPlan{}, bucket));
  ASSIGN_OR_RETURN(Tensor out, run_padding(step));
  RETURN_IF_ERROR(graphs_.capture(GraphPart::kForward, bucket, stream(), [&] { return forward(step); }));
  if (!mesh().last_stage()) return ok_status();
  return graphs_.capture(GraphPart::kSample, bucket, stream(), [&] { return sample(out, step); });
}

int64_t ModelRunner::bucket_of(const sched::StepPlan& plan) const {
  if (!plan.decode_only()) return 0;
  return graphs_.bucket_for(static_cast<int64_t>(plan.runs.size()));
}

Status ModelRunner::execute(const sched::StepPlan& plan) {
  RETURN_IF_ERROR(mirror_.apply(plan));
  RETURN_IF_ERROR(stream().error());
  int64_t bucket = bucket_of(plan);
  if (parts_.hooks.profile != nullptr) parts_.hooks.profile->begin(plan, stream());
  ASSIGN_OR_RETURN(PreparedStep step, prepare(plan, bucket));
  if (parts_.hooks.on_phase) parts_.hooks.on_phase(step.decode_only ? "decode" : "prefill");

  InFlight& entry = in_flight(plan.step);
  entry.step = plan.step;
  entry.num_real_samples = step.num_real_samples;
  entry.returns = entry.applied = false;
  entry.slots = step.kept_slots;
  entry.positions = step.kept_positions;

  take_history(plan, step);
  receive_activations(step);
  parts_.model->plan(step.view);
  Tensor out = bucket > 0 ? graphs_.replay(GraphPart::kForward, bucket, stream()) : forward(step);
  if (mesh().last_stage()) {
    if (parts_.hooks.on_logits) parts_.hooks.on_logits(plan, out, stream());
    const Tensor records = records_of(out, step, bucket);
    note_work_end();
    hand_over(records, step);
  } else {
    note_work_end();
    parts_.context.ops->observed(CallKind::kCopy, "hand_off", out.dim(0), [&](device::Stream& from) {
      parts_.lanes->to_next->send(out, from);
    });
  }
  if (parts_.hooks.profile != nullptr) parts_.hooks.profile->end(stream());
  if (mesh().first_stage() && !mesh().last_stage()) {
    return_tokens(step);
  } else {
    stream().record(*entry.done);
  }
  return stream().error();
}

Result<PreparedStep> ModelRunner::prepare(const sched::StepPlan& plan, int64_t bucket) {
  PreparedStep step;
  Status status;
  parts_.context.ops->observed(CallKind::kCopy, "copy_inputs", plan.num_tokens(), [&](device::Stream& into) {
    Result<PreparedStep> prepared = inputs_->prepare(plan, mirror_, into, bucket);
    status = prepared.status();
    if (prepared.ok()) step = std::move(prepared).value();
  });
  RETURN_IF_ERROR(status);
  step.view.kv = parts_.kv_cache->layers();
  return step;
}

// The first stage reads its inputs from the history, the last one its penalties.
void ModelRunner::take_history(const sched::StepPlan& plan, const PreparedStep& step) {
  if (!mesh().first_stage() && !mesh().last_stage()) return;
  if (mesh().first_stage() && !mesh().last_stage()) {
    // Whatever left the flight has returned: taking it keeps the ring's slots free.
    auto depth = static_cast<uint64_t>(options_.max_steps_in_flight());
    uint64_t left_flight = plan.step > depth ? plan.step - depth : 0;
    apply_returned_tokens(std::max(plan.needs_tokens_of, left_flight));
  }
  if (step.new_tokens.numel() == 0) return;
  parts_.context.ops->scatter_tokens({.tokens = step.new_tokens,
                                      .slots = step.new_slots,
                                      .positions = step.new_positions,
                                      .history = history_});
}

// Out of the lane's buffer of this step into memory that is the same in every step.
void ModelRunner::receive_activations(const PreparedStep& step) {
  if (mesh().first_stage()) return note_begin(step);
  parallel::Lane& lane = *parts_.lanes->from_previous;
  Tensor entrance = parts_.model->entrance(step.view).residual;
  uint64_t number = lane.post_receive(entrance);
  Tensor arrived = wait_for("wait_for_stage", lane, number, step.view.local_tokens);
  note_begin(step);
  parts_.context.ops->observed(
      CallKind::kCopy, "copy_from_lane", step.view.local_tokens, [&](device::Stream& into) {
        into.copy(entrance, arrived);
      });
  lane.release(number, stream());
}

void ModelRunner::apply_returned_tokens(uint64_t through_step) {
  while (applied_through_ < through_step) {
    InFlight& entry = in_flight(++applied_through_);
    if (!entry.returns || entry.applied) continue;
    parallel::Lane& lane = *parts_.lanes->tokens_from_last;
    Tensor arrived = wait_for("wait_for_tokens", lane, entry.transfer, entry.slots.dim(0));
    scatter(arrived, entry.slots, entry.positions);
    lane.release(entry.transfer, stream());
    entry.applied = true;
  }
}

Tensor ModelRunner::wait_for(const char* what, parallel::Lane& lane, uint64_t transfer, int64_t rows) {
  Tensor arrived;
  parts_.context.ops->observed(
      CallKind::kWait, what, rows, [&](device::Stream& into) { arrived = lane.received(transfer, into); });
  return arrived;
}

void ModelRunner::scatter(const Tensor& records, const Tensor& slots, const Tensor& positions) {
  parts_.context.ops->scatter_tokens({.tokens = records.reshaped({records.numel()}),
                                      .token_stride = kRecordWords,
                                      .slots = slots,
                                      .positions = positions,
                                      .history = history_});
}

Tensor ModelRunner::forward(const PreparedStep& step) {
  const parallel::StepView& view = step.view;
  model::Model& model = *parts_.model;
  parallel::Hidden hidden;
  if (mesh().first_stage()) {
    parts_.context.ops->gather_tokens(
        {.history = history_, .slots = step.token_slots, .positions = view.positions, .ids = view.token_ids});
    hidden = model.embed(view);
  } else {
    hidden = model.entrance(view);
  }
  for (int i = 0; i < model.num_blocks(); ++i) model.block(i, hidden, view);
  if (!mesh().last_stage()) return model.leave(hidden, view);
  return view.num_samples > 0 ? model.head(hidden, view) : Tensor{};
}

void ModelRunner::note_begin(const PreparedStep& step) {
  if (parts_.hooks.trace != nullptr)
    parts_.hooks.trace->begin(step.step, step.view.num_tokens, step.decode_only, stream());
  meter_->begin(step.step, stream());
}

// What is handed on may wait for the next stage: that is no work of this one.
void ModelRunner::note_work_end() {
  meter_->end(stream());
  if (parts_.hooks.trace != nullptr) parts_.hooks.trace->end(stream());
}

Tensor ModelRunner::sample(const Tensor& logits, const PreparedStep& step) {
  Tensor records = parts_.sampler->sample(logits, step, history_);
  scatter(records, step.sample_slots, step.sample_positions);
  return records;
}

// A step without samples has a record that nobody reads.
Tensor ModelRunner::records_of(const Tensor& logits, const PreparedStep& step, int64_t bucket) {
  if (step.view.num_samples == 0) return parts_.sampler->blank_record();
  bool replays = bucket > 0 && step.greedy_only;
  return replays ? graphs_.replay(GraphPart::kSample, bucket, stream()) : sample(logits, step);
}

// To the first stage, which learns from it that the step has run, or on a rank that is first and last to its
// own host.
void ModelRunner::hand_over(const Tensor& records, const PreparedStep& step) {
  if (!mesh().first_stage()) {
    parts_.lanes->tokens_to_first->send(records, stream());
    return;
  }
  if (step.view.num_samples == 0) return;
  Tensor host = records;
  host.data = in_flight(step.step).results.data();
  parts_.context.ops->observed(CallKind::kCopy, "copy_tokens", records.dim(0), [&](device::Stream& from) {
    from.copy(host, records);
  });
}

// On the first stage of several: the tokens come over their own lane, straight to the host too. A step is
// done when all stages have run it, so one without samples waits for its record as well.
void ModelRunner::return_tokens(const PreparedStep& step) {
  InFlight& entry = in_flight(step.step);
  parallel::Lane& lane = *parts_.lanes->tokens_from_last;
  entry.returns = step.view.num_samples > 0;
  entry.transfer = lane.post_receive(records_like(std::max<int64_t>(1, step.view.num_samples)));
  Tensor arrived = lane.received(entry.transfer, lane.stream());
  if (entry.returns) {
    Tensor host = arrived;
    host.data = entry.results.data();
    lane.stream().copy(host, arrived);
  } else {
    lane.release(entry.transfer, lane.stream());
  }
  lane.stream().record(*entry.done);
}

bool ModelRunner::complete(uint64_t step) const { return in_flight(step).done->complete(); }

Result<std::span<const kernels::SampleRecord>> ModelRunner::collect(uint64_t step, Deadline deadline) {
  InFlight& entry = in_flight(step);
  CHECK_EQ(entry.step, step);
  RETURN_IF_ERROR(entry.done->wait(deadline));
  return std::span<const kernels::SampleRecord>(
      reinterpret_cast<const kernels::SampleRecord*>(entry.results.data()),
      static_cast<size_t>(entry.num_real_samples));
}

std::vector<device::Stream*> ModelRunner::streams() const {
  std::vector<device::Stream*> all = {&stream()};
  for (parallel::Lane* lane : {parts_.lanes->from_previous.get(),
                               parts_.lanes->to_next.get(),
                               parts_.lanes->tokens_to_first.get(),
                               parts_.lanes->tokens_from_last.get()}) {
    if (lane != nullptr) all.push_back(&lane->stream());
  }
  return all;
}

Status ModelRunner::poll() {
  for (device::Stream* stream : streams()) RETURN_IF_ERROR(stream->poll());
  return ok_status();
}

// Every stream, also behind a failed one: afterwards nothing refers to this rank's memory.
Status ModelRunner::drain(Deadline deadline) {
  Status first;
  for (device::Stream* stream : streams()) {
    Status status = stream->synchronize(deadline);
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace llm_dist::engine
