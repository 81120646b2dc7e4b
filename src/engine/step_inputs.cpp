#include "src/engine/step_inputs.h"

#include <algorithm>
#include <cstring>

namespace llm_dist::engine {
namespace {
constexpr int64_t kAlignment = 256;
constexpr int64_t kIntBytes = 4;
constexpr int64_t kRowBytes = sizeof(kernels::SampleRow);

bool is_plain_greedy(const kernels::SampleRow& row) {
  return row.temperature == 0.0f && row.num_logprobs < 0 && row.repetition_penalty == 1.0f &&
         row.presence_penalty == 0.0f && row.frequency_penalty == 0.0f;
}
}  // namespace

StepInputs::Offsets StepInputs::layout_of(const EngineOptions& options) {
  Offsets at{};
  auto take = [&at](int64_t bytes) {
    int64_t offset = at.bytes;
    at.bytes += EngineOptions::round_up(bytes, kAlignment);
    return offset;
  };
  int64_t tokens = options.padded_tokens() * kIntBytes;
  int64_t samples = options.padded_samples();
  at.token_slots = take(tokens);
  at.positions = take(tokens);
  at.kv_slots = take(tokens);
  at.query_starts = take((options.max_num_seqs + 1) * kIntBytes);
  at.context_lens = take(options.max_num_seqs * kIntBytes);
  at.sample_rows = take(samples * kIntBytes);
  at.sample_params = take(samples * kRowBytes);
  at.new_slots = take(tokens);
  at.new_positions = take(tokens);
  at.new_tokens = take(tokens);
  at.block_tables = take(options.max_num_seqs * options.max_blocks_per_sequence() * kIntBytes);
  at.sample_slots = take(samples * kIntBytes);
  at.sample_positions = take(samples * kIntBytes);
  at.token_ids = take(tokens);
  return at;
}

int64_t StepInputs::device_bytes(const EngineOptions& options) { return layout_of(options).bytes; }

StepInputs::StepInputs(device::Backend&, const EngineOptions& options)
    : options_(options),
      offsets_(layout_of(options)),
      max_blocks_(options.max_blocks_per_sequence()),
      known_tokens_(static_cast<size_t>(options.max_num_seqs * options.max_model_len)) {}

Result<std::unique_ptr<StepInputs>> StepInputs::create(device::Backend& backend,
                                                       const EngineOptions& options) {
  std::unique_ptr<StepInputs> inputs(new StepInputs(backend, options));
  ASSIGN_OR_RETURN(inputs->device_, backend.allocate(inputs->offsets_.bytes, device::MemoryKind::kDevice));
  int depth = options.max_steps_in_flight() + 1;
  int64_t index_bytes = 2 * EngineOptions::round_up(options.padded_samples() * kIntBytes, kAlignment);
  for (int i = 0; i < depth; ++i) {
    Staging staging;
    ASSIGN_OR_RETURN(staging.buffer, backend.allocate(inputs->offsets_.bytes, device::MemoryKind::kPinned));
    staging.copied = backend.make_event();
    inputs->stagings_.push_back(std::move(staging));
    ASSIGN_OR_RETURN(device::Buffer index, backend.allocate(index_bytes, device::MemoryKind::kDevice));
    inputs->sample_index_.push_back(std::move(index));
  }
  return inputs;
}

Tensor StepInputs::token_ids(int64_t num_tokens) const {
  return device_.view(DType::kI32, {num_tokens}, offsets_.token_ids);
}

// A prompt enters with its sequence, but the history takes it chunk by chunk as it runs: a long one never
// makes one step long.
void StepInputs::remember_tokens(const sched::StepPlan& plan) {
  const int32_t* tokens = plan.tokens.data();
  for (const sched::SlotStart& start : plan.starts) {
    std::copy_n(tokens, start.num_tokens, known_tokens_.data() + start.slot * options_.max_model_len);
    tokens += start.num_tokens;
  }
}

void StepInputs::stage_new_tokens(const sched::SlotRun& run, const sched::Mirror::Slot& slot) {
  int32_t end = std::min(run.begin + run.count, slot.params.num_tokens);
  for (int32_t position = run.begin; position < end; ++position, ++num_new_) {
    host<int32_t>(offsets_.new_slots)[num_new_] = run.slot;
    host<int32_t>(offsets_.new_positions)[num_new_] = position;
    host<int32_t>(offsets_.new_tokens)[num_new_] =
        known_tokens_[static_cast<size_t>(run.slot * options_.max_model_len + position)];
  }
}

void StepInputs::stage_sample(const sched::SlotRun& run, const sched::Mirror::Slot& slot) {
  const sched::SlotStart& params = slot.params;
  kernels::SampleRow row{.slot = run.slot,
                         .position = run.begin + run.count,
                         .prompt_len = params.prompt_len,
                         .temperature = params.temperature,
                         .top_k = params.top_k,
                         .top_p = params.top_p,
                         .min_p = params.min_p,
                         .repetition_penalty = params.repetition_penalty,
                         .presence_penalty = params.presence_penalty,
                         .frequency_penalty = params.frequency_penalty,
                         .choice = params.choice,
                         .seed = params.seed,
                         .num_logprobs = params.num_logprobs};
  if (row.position - params.prompt_len < params.min_tokens) {
    row.num_banned = std::min<int32_t>(params.num_end_tokens, kernels::kMaxBannedTokens);
    std::copy_n(slot.end_token_ids.begin(), row.num_banned, row.banned);
  }
  prepared_.greedy_only = prepared_.greedy_only && is_plain_greedy(row);
  host<kernels::SampleRow>(offsets_.sample_params)[num_samples_] = row;
  host<int32_t>(offsets_.sample_rows)[num_samples_] = static_cast<int32_t>(num_tokens_ - 1);
  host<int32_t>(offsets_.sample_slots)[num_samples_] = row.slot;
  host<int32_t>(offsets_.sample_positions)[num_samples_] = row.position;
  ++num_samples_;
}

void StepInputs::stage_run(const sched::SlotRun& run, const sched::Mirror& mirror) {
  const sched::Mirror::Slot& slot = mirror.slot(run.slot);
  std::span<const int32_t> blocks = mirror.blocks(run.slot);
  auto block_size = static_cast<int32_t>(options_.block_size);
  for (int32_t i = 0; i < run.count; ++i, ++num_tokens_) {
    int32_t position = run.begin + i;
    host<int32_t>(offsets_.token_slots)[num_tokens_] = run.slot;
    host<int32_t>(offsets_.positions)[num_tokens_] = position;
    host<int32_t>(offsets_.kv_slots)[num_tokens_] =
        blocks[static_cast<size_t>(position / block_size)] * block_size + position % block_size;
  }
  std::copy(
      blocks.begin(), blocks.end(), host<int32_t>(offsets_.block_tables) + num_sequences_ * max_blocks_);
  host<int32_t>(offsets_.context_lens)[num_sequences_] = run.begin + run.count;
  host<int32_t>(offsets_.query_starts)[++num_sequences_] = static_cast<int32_t>(num_tokens_);
  stage_new_tokens(run, slot);
  if (run.samples != 0) stage_sample(run, slot);
  prepared_.decode_only = prepared_.decode_only && run.count == 1;
}

// Every rank of a tensor group gets the same number of rows, padding included.
void StepInputs::pad(const sched::StepPlan& plan) {
  parallel::StepView& view = prepared_.view;
  bool local = options_.layout.sequence_parallel && options_.layout.tp > 1;
  view.num_tokens = EngineOptions::round_up(num_tokens_, local ? options_.layout.tp : 1);
  view.local_tokens = local ? view.num_tokens / options_.layout.tp : view.num_tokens;
  view.num_sequences = num_sequences_;
  view.num_samples = EngineOptions::round_up(num_samples_, options_.layout.tp);
  for (int64_t i = num_tokens_; i < view.num_tokens; ++i) {
    host<int32_t>(offsets_.token_slots)[i] = -1;
    host<int32_t>(offsets_.positions)[i] = 0;
    host<int32_t>(offsets_.kv_slots)[i] = -1;
  }
  for (int64_t i = num_samples_; i < view.num_samples; ++i) {
    host<kernels::SampleRow>(offsets_.sample_params)[i] = {.temperature = 0.0f};
    host<int32_t>(offsets_.sample_rows)[i] = -1;
    host<int32_t>(offsets_.sample_slots)[i] = -1;
    host<int32_t>(offsets_.sample_positions)[i] = 0;
  }
  prepared_.step = plan.step;
  prepared_.num_real_samples = num_samples_;
}

Tensor StepInputs::upload(int64_t offset,
                          DType dtype,
                          std::initializer_list<int64_t> shape,
                          device::Stream& stream) {
  Tensor to = device_.view(dtype, shape, offset);
  Tensor from = to;
  from.data = staging_->buffer.data() + offset;
  if (to.numel() > 0) stream.copy(to, from);
  return to;
}

Result<PreparedStep> StepInputs::prepare(const sched::StepPlan& plan,
                                         const sched::Mirror& mirror,
                                         device::Stream& stream) {
  staging_ = &stagings_[plan.step % stagings_.size()];
  RETURN_IF_ERROR(staging_->copied->wait(Deadline::after_seconds(options_.step_deadline_seconds)));
  prepared_ = {};
  num_tokens_ = num_sequences_ = num_samples_ = num_new_ = 0;
  host<int32_t>(offsets_.query_starts)[0] = 0;
  remember_tokens(plan);
  for (const sched::SlotRun& run : plan.runs) stage_run(run, mirror);
  pad(plan);

  parallel::StepView& view = prepared_.view;
  prepared_.token_slots = upload(offsets_.token_slots, DType::kI32, {view.num_tokens}, stream);
  view.token_ids = token_ids(view.num_tokens);
  view.positions = upload(offsets_.positions, DType::kI32, {view.num_tokens}, stream);
  view.kv_slots = upload(offsets_.kv_slots, DType::kI32, {view.num_tokens}, stream);
  view.query_starts = upload(offsets_.query_starts, DType::kI32, {view.num_sequences + 1}, stream);
  view.context_lens = upload(offsets_.context_lens, DType::kI32, {view.num_sequences}, stream);
  view.block_tables = upload(offsets_.block_tables, DType::kI32, {view.num_sequences, max_blocks_}, stream);
  view.sample_rows = upload(offsets_.sample_rows, DType::kI32, {view.num_samples}, stream);
  prepared_.new_slots = upload(offsets_.new_slots, DType::kI32, {num_new_}, stream);
  prepared_.new_positions = upload(offsets_.new_positions, DType::kI32, {num_new_}, stream);
  prepared_.new_tokens = upload(offsets_.new_tokens, DType::kI32, {num_new_}, stream);
  prepared_.sample_rows_params =
      upload(offsets_.sample_params, DType::kU8, {view.num_samples, kRowBytes}, stream);

  const device::Buffer& index = sample_index_[plan.step % sample_index_.size()];
  prepared_.sample_slots = index.view(DType::kI32, {view.num_samples});
  prepared_.sample_positions = index.view(DType::kI32, {view.num_samples}, index.bytes() / 2);
  if (view.num_samples > 0) {
    auto staged = [&](int64_t offset) {
      return Tensor::contiguous(staging_->buffer.data() + offset, DType::kI32, {view.num_samples});
    };
    stream.copy(prepared_.sample_slots, staged(offsets_.sample_slots));
    stream.copy(prepared_.sample_positions, staged(offsets_.sample_positions));
  }
  stream.record(*staging_->copied);
  return prepared_;
}

}  // namespace llm_dist::engine
