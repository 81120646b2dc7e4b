#include "src/engine/step_inputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace llm_dist::engine {
namespace {
constexpr int64_t kAlignment = 64;
constexpr int64_t kIntBytes = 4;
constexpr int64_t kRowBytes = sizeof(kernels::SampleRow);

bool is_plain_greedy(const kernels::SampleRow& row) {
  return row.temperature == 0.0f && row.num_logprobs < 0 && row.repetition_penalty == 1.0f &&
         row.presence_penalty == 0.0f && row.frequency_penalty == 0.0f && row.masks_little();
}

bool may_not_end(const sched::Mirror::Slot& slot, int32_t position) {
  return position - slot.params.prompt_len < slot.params.min_tokens;
}

// Words that the run's sample stages.
int64_t num_rule_words(const sched::SlotRun& run, const sched::Mirror::Slot& slot) {
  int64_t num_banned = may_not_end(slot, run.begin + run.count) ? slot.params.num_end_tokens : 0;
  return slot.params.rules.num_words + std::max<int64_t>(0, num_banned - kernels::kMaxBannedTokens);
}
}  // namespace

StepInputs::Counts StepInputs::most(const EngineOptions& options) {
  return {.tokens = options.padded_tokens(),
          .sequences = options.max_num_seqs,
          .samples = options.padded_samples(),
          .new_tokens = options.padded_tokens(),
          .rule_words = options.max_num_seqs * kMaxRuleWords};
}

// What only prompts or few requests have comes last: it moves nothing in a step of plain decodes.
StepInputs::Offsets StepInputs::layout_of(const EngineOptions& options, const Counts& counts) {
  Offsets at{};
  auto take = [&at](int64_t bytes) {
    int64_t offset = at.bytes;
    at.bytes += EngineOptions::round_up(bytes, kAlignment);
    return offset;
  };
  at.token_slots = take(counts.tokens * kIntBytes);
  at.positions = take(counts.tokens * kIntBytes);
  at.kv_slots = take(counts.tokens * kIntBytes);
  at.query_starts = take((counts.sequences + 1) * kIntBytes);
  at.context_lens = take(counts.sequences * kIntBytes);
  at.sample_rows = take(counts.samples * kIntBytes);
  at.sample_slots = take(counts.samples * kIntBytes);
  at.sample_positions = take(counts.samples * kIntBytes);
  at.sample_params = take(counts.samples * kRowBytes);
  at.block_tables = take(counts.sequences * options.max_blocks_per_sequence() * kIntBytes);
  at.new_slots = take(counts.new_tokens * kIntBytes);
  at.new_positions = take(counts.new_tokens * kIntBytes);
  at.new_tokens = take(counts.new_tokens * kIntBytes);
  at.rule_words = take(counts.rule_words * kIntBytes);
  return at;
}

int64_t StepInputs::device_bytes(const EngineOptions& options) {
  return layout_of(options, most(options)).bytes + options.padded_tokens() * kIntBytes;
}

StepInputs::StepInputs(device::Backend&, const EngineOptions& options)
    : options_(options),
      max_blocks_(options.max_blocks_per_sequence()),
      known_tokens_(static_cast<size_t>(options.max_num_seqs * options.max_model_len)) {}

Result<std::unique_ptr<StepInputs>> StepInputs::create(device::Backend& backend,
                                                       const EngineOptions& options) {
  std::unique_ptr<StepInputs> inputs(new StepInputs(backend, options));
  int64_t bytes = layout_of(options, most(options)).bytes;
  ASSIGN_OR_RETURN(inputs->device_, backend.allocate(bytes, device::MemoryKind::kDevice));
  ASSIGN_OR_RETURN(inputs->token_ids_,
                   backend.allocate(options.padded_tokens() * kIntBytes, device::MemoryKind::kDevice));
  int depth = options.max_steps_in_flight() + 1;
  int64_t index_bytes = 2 * EngineOptions::round_up(options.padded_samples() * kIntBytes, kAlignment);
  for (int i = 0; i < depth; ++i) {
    Staging staging;
    ASSIGN_OR_RETURN(staging.buffer, backend.allocate(bytes, device::MemoryKind::kPinned));
    staging.copied = backend.make_event();
    inputs->stagings_.push_back(std::move(staging));
    if (options.layout.pp == 1) continue;
    ASSIGN_OR_RETURN(device::Buffer index, backend.allocate(index_bytes, device::MemoryKind::kDevice));
    inputs->sample_index_.push_back(std::move(index));
  }
  return inputs;
}

StepInputs::Counts StepInputs::count(const sched::StepPlan& plan,
                                     const sched::Mirror& mirror,
                                     int64_t bucket) const {
  auto sequences = static_cast<int64_t>(plan.runs.size());
  Counts counts{.tokens = options_.padded_step(std::max(plan.num_tokens(), bucket)),
                .sequences = std::max(sequences, bucket),
                .samples = EngineOptions::round_up(std::max(plan.num_samples(), bucket), options_.layout.tp)};
  for (const sched::SlotRun& run : plan.runs) {
    const sched::Mirror::Slot& slot = mirror.slot(run.slot);
    int32_t end = std::min(run.begin + run.count, slot.params.num_tokens);
    counts.new_tokens += std::max(0, end - run.begin);
    if (run.samples != 0) counts.rule_words += num_rule_words(run, slot);
  }
  return counts;
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

void StepInputs::stage_rules(const sched::Mirror::Slot& slot, kernels::SampleRow& row) {
  auto append = [this](std::span<const int32_t> words) {
    std::ranges::copy(words, host<int32_t>(offsets_.rule_words) + num_rule_words_);
    return static_cast<int32_t>(
        std::exchange(num_rule_words_, num_rule_words_ + static_cast<int64_t>(words.size())));
  };
  row.rules = slot.params.rules;
  row.rules_begin = append(slot.rule_words);
  if (!may_not_end(slot, row.position)) return;
  std::span<const int32_t> end_tokens = slot.end_token_ids;
  row.num_banned = static_cast<int32_t>(std::min<size_t>(end_tokens.size(), kernels::kMaxBannedTokens));
  std::copy_n(end_tokens.begin(), row.num_banned, row.banned);
  std::span<const int32_t> more = end_tokens.subspan(static_cast<size_t>(row.num_banned));
  row.num_more_banned = static_cast<int32_t>(more.size());
  row.more_banned_begin = append(more);
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
                         .num_logprobs = params.num_logprobs,
                         .no_repeat_ngram_size = params.no_repeat_ngram_size};
  stage_rules(slot, row);
  add_row(row, num_tokens_ - 1, run.slot);
}

// The history has the prompt's tokens already: what these rows say of them goes to the host alone.
void StepInputs::stage_scores(const sched::SlotRun& run, const sched::Mirror::Slot& slot) {
  int32_t first = sched::first_scored(run, slot.prompt_len);
  for (int32_t position = first; position < first + run.num_scores; ++position) {
    kernels::SampleRow row{
        .slot = run.slot,
        .position = position,
        .prompt_len = slot.prompt_len,
        .num_logprobs = slot.params.num_prompt_logprobs,
        .known_token = known_tokens_[static_cast<size_t>(run.slot * options_.max_model_len + position)]};
    add_row(row, num_tokens_ - run.count + position - 1 - run.begin, -1);
  }
}

void StepInputs::add_row(const kernels::SampleRow& row, int64_t token, int32_t history_slot) {
  prepared_.greedy_only = prepared_.greedy_only && is_plain_greedy(row);
  host<kernels::SampleRow>(offsets_.sample_params)[num_samples_] = row;
  host<int32_t>(offsets_.sample_rows)[num_samples_] = static_cast<int32_t>(token);
  host<int32_t>(offsets_.sample_slots)[num_samples_] = history_slot;
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
  stage_scores(run, slot);
  if (run.samples != 0) stage_sample(run, slot);
  parallel::StepBounds& bounds = prepared_.view.bounds;
  bounds.max_query_len = std::max<int64_t>(bounds.max_query_len, run.count);
  bounds.max_context_len = std::max<int64_t>(bounds.max_context_len, run.begin + run.count);
}

// Every rank of a tensor group gets the same number of rows, padding included. Sequences that pad have no
// queries.
void StepInputs::pad() {
  for (int64_t i = num_tokens_; i < counts_.tokens; ++i) {
    host<int32_t>(offsets_.token_slots)[i] = -1;
    host<int32_t>(offsets_.positions)[i] = 0;
    host<int32_t>(offsets_.kv_slots)[i] = -1;
  }
  for (int64_t i = num_sequences_; i < counts_.sequences; ++i) {
    host<int32_t>(offsets_.context_lens)[i] = 0;
    host<int32_t>(offsets_.query_starts)[i + 1] = static_cast<int32_t>(num_tokens_);
  }
  for (int64_t i = num_samples_; i < counts_.samples; ++i) {
    host<kernels::SampleRow>(offsets_.sample_params)[i] = {.temperature = 0.0f};
    host<int32_t>(offsets_.sample_rows)[i] = -1;
    host<int32_t>(offsets_.sample_slots)[i] = -1;
    host<int32_t>(offsets_.sample_positions)[i] = 0;
  }
}

void StepInputs::view_inputs() {
  parallel::StepView& view = prepared_.view;
  view.num_tokens = counts_.tokens;
  view.sequence_parallel = options_.layout.is_sequence_parallel(view.num_tokens);
  view.local_tokens = view.sequence_parallel ? view.num_tokens / options_.layout.tp : view.num_tokens;
  view.num_sequences = counts_.sequences;
  view.num_samples = counts_.samples;
  auto ints = [&](int64_t offset, std::initializer_list<int64_t> shape) {
    return device_.view(DType::kI32, shape, offset);
  };
  view.token_ids = token_ids_.view(DType::kI32, {counts_.tokens});
  view.positions = ints(offsets_.positions, {counts_.tokens});
  view.kv_slots = ints(offsets_.kv_slots, {counts_.tokens});
  view.query_starts = ints(offsets_.query_starts, {counts_.sequences + 1});
  view.context_lens = ints(offsets_.context_lens, {counts_.sequences});
  view.block_tables = ints(offsets_.block_tables, {counts_.sequences, max_blocks_});
  view.sample_rows = ints(offsets_.sample_rows, {counts_.samples});
  view.bounds.query_starts_host = host<int32_t>(offsets_.query_starts);
  view.bounds.context_lens_host = host<int32_t>(offsets_.context_lens);
  prepared_.token_slots = ints(offsets_.token_slots, {counts_.tokens});
  prepared_.new_slots = ints(offsets_.new_slots, {counts_.new_tokens});
  prepared_.new_positions = ints(offsets_.new_positions, {counts_.new_tokens});
  prepared_.new_tokens = ints(offsets_.new_tokens, {counts_.new_tokens});
  prepared_.sample_rows_params =
      device_.view(DType::kU8, {counts_.samples, kRowBytes}, offsets_.sample_params);
  prepared_.rule_words = ints(offsets_.rule_words, {counts_.rule_words});
  prepared_.sample_slots = ints(offsets_.sample_slots, {counts_.samples});
  prepared_.sample_positions = ints(offsets_.sample_positions, {counts_.samples});
}

void StepInputs::keep_sample_index(uint64_t step, device::Stream& stream) {
  if (sample_index_.empty()) return;
  const device::Buffer& index = sample_index_[step % sample_index_.size()];
  prepared_.kept_slots = index.view(DType::kI32, {counts_.samples});
  prepared_.kept_positions = index.view(DType::kI32, {counts_.samples}, index.bytes() / 2);
  if (counts_.samples == 0) return;
  stream.copy(prepared_.kept_slots, prepared_.sample_slots);
  stream.copy(prepared_.kept_positions, prepared_.sample_positions);
}

Result<PreparedStep> StepInputs::prepare(const sched::StepPlan& plan,
                                         const sched::Mirror& mirror,
                                         device::Stream& stream,
                                         int64_t bucket) {
  return stage(plan, mirror, stream, count(plan, mirror, bucket), bucket > 0 ? 1 : 0);
}

Result<PreparedStep> StepInputs::prepare_padding(int64_t tokens,
                                                 const sched::Mirror& mirror,
                                                 device::Stream& stream) {
  const int64_t tp = options_.layout.tp;
  const Counts counts{.tokens = options_.padded_step(tokens), .sequences = 1, .samples = tp};
  return stage(sched::StepPlan{}, mirror, stream, counts, tokens);
}

Result<PreparedStep> StepInputs::stage(const sched::StepPlan& plan,
                                       const sched::Mirror& mirror,
                                       device::Stream& stream,
                                       const Counts& counts,
                                       int64_t max_query_len) {
  staging_ = &stagings_[plan.step % stagings_.size()];
  RETURN_IF_ERROR(staging_->copied->wait(Deadline::after_seconds(options_.step_deadline_seconds)));
  prepared_ = {.step = plan.step, .decode_only = plan.decode_only()};
  counts_ = counts;
  offsets_ = layout_of(options_, counts_);
  num_tokens_ = num_sequences_ = num_samples_ = num_new_ = num_rule_words_ = 0;
  prepared_.view.bounds.max_query_len = max_query_len;
  host<int32_t>(offsets_.query_starts)[0] = 0;
  remember_tokens(plan);
  for (const sched::SlotRun& run : plan.runs) stage_run(run, mirror);
  pad();
  prepared_.num_real_samples = num_samples_;
  view_inputs();
  if (offsets_.bytes > 0) {
    Tensor to = device_.view(DType::kU8, {offsets_.bytes});
    Tensor from = to;
    from.data = staging_->buffer.data();
    from.device = {};
    stream.copy(to, from);
  }
  keep_sample_index(plan.step, stream);
  stream.record(*staging_->copied);
  return prepared_;
}

}  // namespace llm_dist::engine
