#include "src/sched/scheduler_options.h"

namespace llm_dist::sched {
namespace {

Status check_at_least(const char* name, int32_t value, int32_t minimum) {
  if (value >= minimum) return ok_status();
  return invalid_argument(format("{} is {}; it must be at least {}", name, value, minimum));
}

}  // namespace

Status validate(const SchedulerOptions& options) {
  RETURN_IF_ERROR(check_at_least("num_blocks", options.num_blocks, 1));
  RETURN_IF_ERROR(check_at_least("block_size", options.block_size, 1));
  RETURN_IF_ERROR(check_at_least("max_num_seqs", options.max_num_seqs, 1));
  RETURN_IF_ERROR(check_at_least("max_model_len", options.max_model_len, 2));
  RETURN_IF_ERROR(check_at_least("num_micro_batches", options.num_micro_batches, 1));
  RETURN_IF_ERROR(check_at_least("max_steps_in_flight", options.max_steps_in_flight, 1));
  RETURN_IF_ERROR(check_at_least("max_num_waiting", options.max_num_waiting, 0));
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    return invalid_argument(format("max_num_batched_tokens ({}) must be at least max_num_seqs ({})",
                                   options.max_num_batched_tokens,
                                   options.max_num_seqs));
  }
  if (!options.enable_chunked_prefill && options.max_num_batched_tokens < options.max_model_len) {
    return invalid_argument(
        format("without chunked prefill, max_num_batched_tokens ({}) must be at least max_model_len ({})",
               options.max_num_batched_tokens,
               options.max_model_len));
  }
  return ok_status();
}

}  // namespace llm_dist::sched
