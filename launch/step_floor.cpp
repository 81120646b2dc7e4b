#include "launch/step_floor.h"

#include <algorithm>

namespace llm_dist::launch {

StepFloor decode_floor(const Ceilings& ceilings, const DecodeShape& shape) {
  const int rows = shape.rows_of_step();
  const auto measured = ceilings.all_reduce_seconds.find(rows);
  const double all_reduce = measured == ceilings.all_reduce_seconds.end() ? 0 : measured->second;
  StepFloor once;  // a step through all stages
  StepFloor slowest;
  for (const StageWork& stage : ceilings.stages) {
    double products = 0;
    if (ceilings.gemm_flops_per_second > 0) {
      products = rows * (stage.layer_flops / ceilings.gemm_flops_per_second +
                         stage.head_flops / ceilings.head_flops_per_second);
    }
    const double weights = stage.weight_bytes / ceilings.read_bytes_per_second;
    const double cache =
        stage.kv_bytes_per_token * rows * static_cast<double>(shape.context) / ceilings.read_bytes_per_second;
    const double sums = 2.0 * static_cast<double>(stage.layers) * all_reduce;
    const StepFloor floor{.seconds = std::max(weights, products) + cache + sums, .all_reduce_seconds = sums};
    once.seconds += floor.seconds;
    once.all_reduce_seconds += floor.all_reduce_seconds;
    if (floor.seconds > slowest.seconds) slowest = floor;
  }
  if (once.seconds >= shape.steps() * slowest.seconds) return once;
  return {.seconds = shape.steps() * slowest.seconds,
          .all_reduce_seconds = shape.steps() * slowest.all_reduce_seconds};
}

double prefill_floor(const Ceilings& ceilings, int64_t num_tokens, int64_t step_tokens) {
  if (ceilings.gemm_flops_per_second == 0) return 0;
  double once = 0;  // a token through all stages
  double slowest = 0;
  for (const StageWork& stage : ceilings.stages) {
    const double seconds = (stage.layer_flops - stage.unread_flops) / ceilings.gemm_flops_per_second;
    once += seconds;
    slowest = std::max(slowest, seconds);
  }
  const int64_t last = num_tokens - (num_tokens - 1) / step_tokens * step_tokens;
  return static_cast<double>(num_tokens) * slowest + static_cast<double>(last) * (once - slowest);
}

}  // namespace llm_dist::launch
