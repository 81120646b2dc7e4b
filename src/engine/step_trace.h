// StepTrace: when a rank's device was busy with each step, by the device's own clock, for `--trace-file`.
#pragma once

#include <memory>
#include <vector>

#include "src/device/backend.h"

namespace llm_dist::engine {

struct TracedStep {
  uint64_t step = 0;
  int64_t tokens = 0;
  bool decode_only = false;
  int64_t begin_ns = 0;  // clock of Stream::write_timestamp
  int64_t end_ns = 0;
};

// The first `capacity` steps; later ones are not recorded. One thread calls begin and end.
class StepTrace {
 public:
  static Result<std::unique_ptr<StepTrace>> create(device::Backend& backend, size_t capacity);

  // The inputs of the step are there: the layers come next on `stream`.
  void begin(uint64_t step, int64_t tokens, bool decode_only, device::Stream& stream);
  // The layers, and on the last stage the sampling, stand before this on `stream`.
  void end(device::Stream& stream);

  // Those that began and ended. Only when every stream that was given is idle.
  std::vector<TracedStep> steps() const;

 private:
  explicit StepTrace(size_t capacity) : capacity_(capacity) { steps_.reserve(capacity); }
  int64_t* stamp(size_t index) { return reinterpret_cast<int64_t*>(stamps_.data()) + index; }

  size_t capacity_;
  bool recording_ = false;         // a step has begun and not ended
  std::vector<TracedStep> steps_;  // without their times
  device::Buffer stamps_;          // pinned i64 [capacity, begin and end]
};

}  // namespace llm_dist::engine
