#include "launch/step_driver.h"

#include <algorithm>

#include "launch/random_lengths.h"
#include "src/engine/engine.h"

namespace llm_dist::launch {
namespace {

bool has_shape(const sched::StepPlan& plan, const StepShape& shape) {
  if (!shape.decode) return true;  // the first step is the one
  return plan.decode_only() && static_cast<int>(plan.runs.size()) == shape.batch;
}

}  // namespace

StepDriver::StepDriver(engine::RankEngine& rank, int64_t vocab_size)
    : rank_(rank), vocab_size_(vocab_size), scheduler_(engine::scheduler_options(rank.options())) {
  CHECK(!rank.options().async_scheduling, "a step driver beside asynchronous scheduling");
}

Status StepDriver::add_sequences(const StepShape& shape, std::vector<sched::SequenceId>& ids) {
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(vocab_size_) - 1);
  int count = shape.decode ? shape.batch : 1;
  ids.reserve(static_cast<size_t>(count));
  input_lens_.clear();
  RandomLengths lengths(shape.tokens, shape.decode ? shape.range_ratio : 0, count);
  for (int i = 0; i < count; ++i) {
    const int length = lengths.next(random_);
    input_lens_.push_back(length);
    sched::SequenceRequest request{.id = next_id_++, .arrival = Clock::now()};
    request.prompt.reserve(static_cast<size_t>(length));
    for (int j = 0; j < length; ++j) request.prompt.push_back(token(random_));
    apply_draw_flags(shape.draw, request.sampling);
    request.sampling.max_tokens = static_cast<int32_t>(rank_.options().max_model_len) - length;
    request.sampling.ignore_eos = true;
    ids.push_back(request.id);
    RETURN_IF_ERROR(scheduler_.add(std::move(request)));
  }
  return ok_status();
}

// What was sampled is of no interest: the sequences' tokens stand on the device.
Status StepDriver::execute() {
  RETURN_IF_ERROR(rank_.runner().execute(plan_));
  RETURN_IF_ERROR(rank_.runner().drain(Deadline::after_seconds(rank_.options().step_deadline_seconds)));
  std::vector<int32_t> tokens(static_cast<size_t>(plan_.num_samples()), 0);
  scheduler_.retire(plan_.step, tokens, events_);
  return ok_status();
}

Status StepDriver::run(const StepShape& shape,
                       const std::function<void()>& begin,
                       const std::function<void()>& end) {
  std::vector<sched::SequenceId> ids;
  RETURN_IF_ERROR(add_sequences(shape, ids));
  bool reached = false;
  // Each prompt takes a few steps, however they interleave with decodes.
  int64_t most_steps = 16 + int64_t{2} * shape.batch * (1 + shape.tokens / rank_.options().block_size);
  for (int64_t i = 0; i < most_steps && !reached && scheduler_.schedule(plan_); ++i) {
    reached = has_shape(plan_, shape);
    if (reached) begin();
    Status status = execute();
    if (reached) end();
    RETURN_IF_ERROR(status);
  }
  for (sched::SequenceId id : ids) scheduler_.cancel(id);
  if (reached) return ok_status();
  return resource_exhausted(format(
      "{} sequences of {} tokens do not fit the KV cache together: lower --batch or --input-len, or give it "
      "more (--kv-cache-memory-bytes)",
      shape.batch,
      shape.tokens));
}

}  // namespace llm_dist::launch
