#include "src/engine/step_trace.h"

namespace llm_dist::engine {

Result<std::unique_ptr<StepTrace>> StepTrace::create(device::Backend& backend, size_t capacity) {
  std::unique_ptr<StepTrace> trace(new StepTrace(capacity));
  auto bytes = static_cast<int64_t>(capacity * 2 * sizeof(int64_t));
  ASSIGN_OR_RETURN(trace->stamps_, backend.allocate(bytes, device::MemoryKind::kPinned));
  return trace;
}

void StepTrace::begin(uint64_t step, int64_t tokens, bool decode_only, device::Stream& stream) {
  if (steps_.size() == capacity_) return;
  stream.write_timestamp(stamp(2 * steps_.size()));
  steps_.push_back({.step = step, .tokens = tokens, .decode_only = decode_only});
  recording_ = true;
}

void StepTrace::end(device::Stream& stream) {
  if (!recording_) return;
  recording_ = false;
  stream.write_timestamp(stamp(2 * steps_.size() - 1));
}

std::vector<TracedStep> StepTrace::steps() const {
  std::vector<TracedStep> done;
  done.reserve(steps_.size());
  const auto* stamps = reinterpret_cast<const int64_t*>(stamps_.data());
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (stamps[2 * i] == 0 || stamps[2 * i + 1] == 0) continue;
    done.push_back(steps_[i]);
    done.back().begin_ns = stamps[2 * i];
    done.back().end_ns = stamps[2 * i + 1];
  }
  return done;
}

}  // namespace llm_dist::engine
