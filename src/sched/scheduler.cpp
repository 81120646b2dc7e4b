#include "src/sched/scheduler.h"

#include <algorithm>
#include <ranges>

#include "src/base/check.h"

namespace llm_dist::sched {
namespace {

SchedulerOptions checked(const SchedulerOptions& options) {
  const Status status = validate(options);
  CHECK(status.ok(), "{}", status.to_string());
  return options;
}

int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

}  // namespace

Scheduler::Scheduler(SchedulerOptions options)
    : options_(checked(options)),
      pool_(options.num_blocks),
      mirror_(
          options.max_num_seqs, blocks_for(options.max_model_len), options.block_size, options.num_blocks),
      running_(options.max_num_seqs),
      // A run of n tokens takes at most n / block_size + 1 new blocks.
      builder_(options.max_num_seqs,
               options.max_num_seqs + options.max_num_batched_tokens / options.block_size),
      slot_sample_step_(static_cast<size_t>(options.max_num_seqs)),
      touches_(static_cast<size_t>(options.max_steps_in_flight)) {
  const auto num_slots = static_cast<size_t>(options.max_num_seqs);
  free_slots_.reserve(num_slots);
  ended_slots_.reserve(num_slots);
  decodes_.reserve(num_slots);
  prefills_.reserve(num_slots);
  for (std::vector<Touch>& touches : touches_) touches.reserve(num_slots);
  for (int32_t slot = options.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

// ---- requests
// -------------------------------------------------------------------------------------------------------

Status Scheduler::check_request(const SequenceRequest& request) const {
  const auto prompt_len = static_cast<int64_t>(request.prompt.size());
  if (prompt_len == 0) return invalid_argument("the prompt is empty");
  if (prompt_len >= options_.max_model_len) {
    return invalid_argument(
        format("the prompt has {} tokens; with max_model_len {} at most {} leave room for an answer",
               prompt_len,
               options_.max_model_len,
               options_.max_model_len - 1));
  }
  if (request.sampling.max_tokens < 1) {
    return invalid_argument(format("max_tokens is {}; it must be at least 1", request.sampling.max_tokens));
  }
  const SamplingParams& sampling = request.sampling;
  const size_t num_words = sampling.rules.words.size() + sampling.end_token_ids.size();
  if (num_words > kMaxRuleWords) {
    return invalid_argument(
        format("rules and end tokens of {} words; a sequence may have {}", num_words, kMaxRuleWords));
  }
  // The last token is never an input: its K and V need no room.
  const int64_t max_len = std::min<int64_t>(prompt_len + request.sampling.max_tokens, options_.max_model_len);
  const int64_t capacity = int64_t{options_.num_blocks} * options_.block_size;
  if (max_len - 1 > capacity) {
    return invalid_argument(
        format("{} prompt tokens and up to {} new ones do not fit in the KV cache of {} tokens",
               prompt_len,
               max_len - prompt_len,
               capacity));
  }
  return ok_status();
}

Status Scheduler::add(SequenceRequest request) {
  RETURN_IF_ERROR(check_request(request));
  if (sequences_.contains(request.id))
    return invalid_argument(format("sequence {} exists already", request.id));
  if (options_.max_num_waiting > 0 && waiting_.size() >= options_.max_num_waiting) {
    return resource_exhausted(format("{} sequences wait already", waiting_.size()));
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = request.id;
  sequence->priority = options_.policy == SchedulingPolicy::kPriority ? request.priority : 0;
  sequence->arrival = request.arrival;
  sequence->order = next_order_++;
  sequence->prompt_len = static_cast<int32_t>(request.prompt.size());
  const int64_t max_len = int64_t{sequence->prompt_len} + request.sampling.max_tokens;
  sequence->max_len = static_cast<int32_t>(std::min<int64_t>(max_len, options_.max_model_len));
  sequence->scored_ahead = request.sampling.num_prompt_logprobs < 0 ? sequence->prompt_len : 1;
  sequence->tokens = std::move(request.prompt);
  sequence->sampling = std::move(request.sampling);
  waiting_.insert(*sequence);
  ++num_unstarted_;
  unstarted_tokens_ += sequence->prompt_len;
  sequences_.emplace(request.id, std::move(sequence));
  return ok_status();
}

bool Scheduler::cancel(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->state == SequenceState::kEnded) return false;
  end(*found->second);
  return true;
}

// ---- one step
// -------------------------------------------------------------------------------------------------------

bool Scheduler::schedule(StepPlan& plan) {
  plan.clear();
  if (steps_in_flight() >= options_.max_steps_in_flight) return false;
  builder_.reset(options_.max_num_batched_tokens, options_.max_num_seqs);
  out_of_blocks_ = false;
  classify();
  const std::span<Sequence* const> ready = order_decodes();
  add_decodes(ready);
  add_prefills();
  admit_waiting();
  if (builder_.empty()) add_decodes(std::span(decodes_).subspan(ready.size()));
  if (builder_.empty()) return false;
  publish(plan);
  return true;
}

void Scheduler::classify() {
  decodes_.clear();
  prefills_.clear();
  for (Sequence* sequence : running_.members()) {
    (sequence->in_prefill() ? prefills_ : decodes_).push_back(sequence);
  }
}

int32_t Scheduler::decode_limit() const {
  int32_t budget = builder_.tokens_left();
  const bool half_read = !prefills_.empty();
  if (!options_.enable_chunked_prefill && !half_read && !waiting_.empty() && can_admit(waiting_.front())) {
    // A whole prompt needs its room in one step; what runs makes way for it, or long prompts would never
    // start. One that waits behind a prompt that is scored in chunks would keep the others out of each of
    // them.
    budget -= static_cast<int32_t>(waiting_.front().tokens.size());
  }
  return std::min(budget, ceil_div(static_cast<int32_t>(decodes_.size()), options_.num_micro_batches));
}

// Puts those first that ran longest ago, if not all can run, and returns the ones whose last tokens are back,
// or come back while the steps between are on their way. A step with any other waits at the first stage until
// the one in front has left the last stage, which is worth it where it would have nothing else.
std::span<Sequence* const> Scheduler::order_decodes() {
  if (decode_limit() < static_cast<int32_t>(decodes_.size())) {
    std::ranges::sort(decodes_, [](const Sequence* a, const Sequence* b) {
      return a->last_step != b->last_step ? a->last_step < b->last_step : goes_before(*a, *b);
    });
  }
  const auto interval = static_cast<uint64_t>(options_.num_micro_batches);
  const auto first_early = std::ranges::find_if(decodes_, [&](const Sequence* sequence) {
    return in_flight(*sequence) && sequence->last_step + interval > step_ + 1;
  });
  return {decodes_.begin(), first_early};
}

void Scheduler::add_decodes(std::span<Sequence* const> decodes) {
  const int32_t limit = decode_limit();
  // One that finds no block does not count: somebody behind it may be the one that can go on.
  for (Sequence* sequence : decodes) {
    if (builder_.num_runs() >= limit) return;
    if (sequence->state == SequenceState::kRunning) add_run(*sequence, 1);
  }
}

void Scheduler::add_prefills() {
  auto num_behind = static_cast<int32_t>(prefills_.size());  // each may need a row to sample
  for (Sequence* sequence : prefills_) {
    if (builder_.tokens_left() == 0) return;
    const int32_t rows = builder_.rows_left() - --num_behind;
    const int32_t count = chunk_of(*sequence, sequence->start_len - sequence->computed_ahead, rows);
    if (sequence->state == SequenceState::kRunning && count > 0) add_run(*sequence, count);
  }
}

void Scheduler::admit_waiting() {
  while (!waiting_.empty() && !out_of_blocks_ && can_admit(waiting_.front())) {
    Sequence& sequence = waiting_.front();
    const int32_t count =
        chunk_of(sequence, static_cast<int32_t>(sequence.tokens.size()), builder_.rows_left());
    if (count == 0) return;
    start(sequence);
    CHECK(add_run(sequence, count), "sequence {} was admitted without room", sequence.id);
  }
}

// How many of the tokens that are left to read go into this step, with `rows` rows of logits to spare. A
// prompt that is scored is read in chunks even where others are not: each of its tokens takes a row.
int32_t Scheduler::chunk_of(const Sequence& sequence, int32_t remaining, int32_t rows) const {
  int32_t count = std::min(remaining, builder_.tokens_left());
  if (sequence.wants_scores()) {
    const int32_t scored_before = std::max(0, sequence.scored_ahead - 1 - sequence.computed_ahead);
    return std::min(count, scored_before + rows);
  }
  if (count == remaining && rows == 0) --count;
  return count == remaining || options_.enable_chunked_prefill ? count : 0;
}

// All its tokens fit, and the others can go on for a while: a sequence that is admitted into the last blocks
// is the first to be preempted, and its prefill was for nothing. (Another prompt is half read here only while
// it is scored: else it would have had the tokens.)
bool Scheduler::can_admit(const Sequence& sequence) const {
  const int32_t headroom = running_.size() / 2;
  int32_t needed = blocks_for(static_cast<int32_t>(sequence.tokens.size()));
  for (const Sequence* half_read : prefills_) {
    if (half_read->state == SequenceState::kRunning)
      needed += blocks_for(half_read->start_len) - half_read->num_blocks;
  }
  return !free_slots_.empty() && pool_.num_free() >= needed + headroom;
}

void Scheduler::start(Sequence& sequence) {
  waiting_.erase(sequence);
  sequence.state = SequenceState::kRunning;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.tokens.reserve(static_cast<size_t>(sequence.max_len));
  sequence.start_len = sequence.len_ahead = static_cast<int32_t>(sequence.tokens.size());
  sequence.computed_ahead = sequence.num_blocks = 0;
  sequence.last_step = sequence.last_sample_step = 0;
  running_.insert(sequence);
  if (!sequence.started) {
    prompt_tokens_total_ += static_cast<uint64_t>(sequence.prompt_len);
    sequence.started_at = Clock::now();
    leave_unstarted(sequence);
  }
  builder_.add_start(sequence);
  // A token of the slot's last holder must not arrive in the first stage's history after this one's tokens.
  builder_.needs_tokens_of(slot_sample_step_[static_cast<size_t>(sequence.slot)]);
}

bool Scheduler::add_run(Sequence& sequence, int32_t count) {
  const int32_t num_new_blocks = blocks_for(sequence.computed_ahead + count) - sequence.num_blocks;
  if (!make_room(sequence, num_new_blocks)) {
    out_of_blocks_ = true;
    return false;
  }
  for (int32_t i = 0; i < num_new_blocks; ++i) builder_.add_new_block(pool_.allocate());
  builder_.needs_tokens_of(sequence.last_sample_step);
  const bool samples = sequence.computed_ahead + count == sequence.len_ahead;
  const int32_t end_scored = std::min(sequence.computed_ahead + count + 1, sequence.prompt_len);
  const int32_t num_scores = std::max(0, end_scored - sequence.scored_ahead);
  builder_.add_run({.sequence = &sequence,
                    .begin = sequence.computed_ahead,
                    .count = count,
                    .samples = samples,
                    .num_new_blocks = num_new_blocks,
                    .num_scores = num_scores});
  sequence.scored_ahead += num_scores;
  sequence.num_blocks += num_new_blocks;
  sequence.computed_ahead += count;
  used_kv_tokens_ += count;
  sequence.last_step = step_ + 1;
  if (samples) {
    ++sequence.len_ahead;
    sequence.last_sample_step = step_ + 1;
  }
  return true;
}

// Preempts from the back until the blocks are there. False when `sequence` has to wait: for blocks that come
// free with the steps in flight, or, being the last itself, for those before it. The first in order never
// waits for good.
bool Scheduler::make_room(const Sequence& sequence, int32_t num_new_blocks) {
  while (pool_.num_free() < num_new_blocks) {
    if (pool_.num_free() + draining_blocks_ >= num_new_blocks) return false;
    if (&running_.last() == &sequence) return false;
    preempt(running_.last());
  }
  return true;
}

void Scheduler::preempt(Sequence& victim) {
  ++num_preemptions_;
  ++num_preempting_;
  out_of_blocks_ = true;
  leave_running(victim, SequenceState::kPreempting);
  settle(victim);
}

void Scheduler::publish(StepPlan& plan) {
  plan.step = ++step_;
  plan.ended_slots.assign(ended_slots_.begin(), ended_slots_.end());
  ended_slots_.clear();
  builder_.order_runs();
  builder_.write(plan);
  const Status status = mirror_.advance(plan);
  CHECK(status.ok(), "{}", status.to_string());
  plan.mirror_checksum = mirror_.checksum();
  touches_[step_ % touches_.size()].clear();
  for (const StepBuilder::Run& run : builder_.runs()) follow(run);
}

void Scheduler::follow(const StepBuilder::Run& run) {
  Sequence& sequence = *run.sequence;
  touches_[step_ % touches_.size()].push_back({.sequence = &sequence,
                                               .samples = run.samples,
                                               .num_scores = run.num_scores,
                                               .first_scored = sequence.scored_ahead - run.num_scores});
  if (sequence.state == SequenceState::kRunning && sequence.samples_no_more()) {
    leave_running(sequence, SequenceState::kFinal);
    ++num_final_;
  }
}

void Scheduler::retire(uint64_t step, std::span<const int32_t> tokens, std::vector<TokenEvent>& events) {
  CHECK(step == retired_step_ + 1 && step <= step_,
        "step {} retires after {} of {}",
        step,
        retired_step_,
        step_);
  events.clear();
  retired_step_ = step;
  size_t num_rows = 0;
  for (const Touch& touch : touches_[step % touches_.size()]) {
    Sequence& sequence = *touch.sequence;
    FinishReason finish = FinishReason::kNone;
    CHECK_LE(num_rows + static_cast<size_t>(touch.num_scores) + size_t{touch.samples}, tokens.size());
    if (sequence.state != SequenceState::kEnded)
      deliver_scores(touch, tokens, static_cast<int32_t>(num_rows), events);
    num_rows += static_cast<size_t>(touch.num_scores);
    if (touch.samples) {
      if (sequence.state != SequenceState::kEnded) {
        events.push_back(deliver(sequence, tokens[num_rows], static_cast<int32_t>(num_rows)));
        finish = events.back().finish;
      }
      ++num_rows;
    }
    if (finish == FinishReason::kNone) {
      settle(sequence);
    } else {
      end(sequence);
    }
  }
  CHECK_EQ(num_rows, tokens.size());
}

void Scheduler::deliver_scores(const Touch& touch,
                               std::span<const int32_t> tokens,
                               int32_t sample_index,
                               std::vector<TokenEvent>& events) {
  for (int32_t i = 0; i < touch.num_scores; ++i, ++sample_index) {
    events.push_back({.id = touch.sequence->id,
                      .token = tokens[static_cast<size_t>(sample_index)],
                      .sample_index = sample_index,
                      .prompt_position = touch.first_scored + i});
  }
}

TokenEvent Scheduler::deliver(Sequence& sequence, int32_t token, int32_t sample_index) {
  sequence.tokens.push_back(token);
  ++generation_tokens_total_;
  const SamplingParams& sampling = sequence.sampling;
  const bool is_end = std::ranges::find(sampling.end_token_ids, token) != sampling.end_token_ids.end();
  TokenEvent event{.id = sequence.id, .token = token, .sample_index = sample_index};
  event.first = sequence.num_generated() == 1;
  event.started = sequence.started_at;
  if (is_end && sequence.num_generated() >= sampling.min_tokens) {
    event.finish = FinishReason::kStop;
  } else if (static_cast<int32_t>(sequence.tokens.size()) == sequence.max_len) {
    event.finish = FinishReason::kLength;
  }
  return event;
}

// ---- leaving
// --------------------------------------------------------------------------------------------------------

void Scheduler::leave_running(Sequence& sequence, SequenceState state) {
  running_.erase(sequence);
  draining_blocks_ += sequence.num_blocks;
  sequence.state = state;
}

// Finished or cancelled, in whatever state. The sequence may be gone afterwards.
void Scheduler::end(Sequence& sequence) {
  switch (sequence.state) {
    case SequenceState::kWaiting:
      waiting_.erase(sequence);
      if (!sequence.started) leave_unstarted(sequence);
      sequences_.erase(sequence.id);
      return;
    case SequenceState::kRunning: leave_running(sequence, SequenceState::kEnded); break;
    case SequenceState::kFinal: --num_final_; break;
    case SequenceState::kPreempting: --num_preempting_; break;
    case SequenceState::kEnded: CHECK(false, "sequence {} ends twice", sequence.id);
  }
  sequence.state = SequenceState::kEnded;
  settle(sequence);
}

// Once no step in flight touches it, a sequence that has left gives back what it holds, and waits again or is
// gone.
void Scheduler::settle(Sequence& sequence) {
  if (in_flight(sequence)) return;
  if (sequence.state == SequenceState::kPreempting) {
    give_back(sequence);
    --num_preempting_;
    sequence.state = SequenceState::kWaiting;
    waiting_.insert(sequence);
  } else if (sequence.state == SequenceState::kEnded) {
    give_back(sequence);
    sequences_.erase(sequence.id);
  }
}

void Scheduler::leave_unstarted(Sequence& sequence) {
  sequence.started = true;
  --num_unstarted_;
  unstarted_tokens_ -= sequence.prompt_len;
}

void Scheduler::give_back(Sequence& sequence) {
  const std::span<const int32_t> blocks = mirror_.blocks(sequence.slot);
  CHECK_EQ(static_cast<int32_t>(blocks.size()), sequence.num_blocks);
  // Of those without a hash the first is then the next to be allocated, and the others behind it: blocks that
  // follow each other are copied at once in attention.
  for (const int32_t block : std::views::reverse(blocks)) pool_.release(block);
  draining_blocks_ -= sequence.num_blocks;
  used_kv_tokens_ -= sequence.computed_ahead;
  uint64_t& last_sample = slot_sample_step_[static_cast<size_t>(sequence.slot)];
  last_sample = std::max(last_sample, sequence.last_sample_step);
  ended_slots_.push_back(sequence.slot);
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  sequence.num_blocks = sequence.computed_ahead = 0;
}

SchedulerStats Scheduler::stats() const {
  const int32_t num_allocated = pool_.num_blocks() - pool_.num_free();
  return {.num_running = running_.size() + num_final_,
          .num_waiting = waiting_.size() + num_preempting_,
          .num_unstarted = num_unstarted_,
          .unstarted_tokens = unstarted_tokens_,
          .num_free_blocks = pool_.num_free(),
          .num_total_blocks = pool_.num_blocks(),
          .allocated_kv_tokens = int64_t{num_allocated} * options_.block_size,
          .used_kv_tokens = used_kv_tokens_,
          .num_preemptions = num_preemptions_,
          .prompt_tokens_total = prompt_tokens_total_,
          .generation_tokens_total = generation_tokens_total_};
}

}  // namespace llm_dist::sched
