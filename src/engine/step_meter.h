// StepMeter: how long this rank's device is busy with each step, by the device's own clock, without waiting
// for it.
#pragma once

#include <memory>
#include <vector>

#include "src/device/backend.h"
#include "src/engine/engine_stats.h"

namespace llm_dist::engine {

// One thread. Measures every step on a CPU, every eighth where a timestamp is a kernel.
class StepMeter {
 public:
  static Result<std::unique_ptr<StepMeter>> create(device::Backend& backend);

  // The inputs of the step are there: the layers come next on `stream`.
  void begin(uint64_t step, device::Stream& stream);
  // The layers, and on the last stage the sampling, stand before this on `stream`.
  void end(device::Stream& stream);

  // Takes in the steps that have ended by now.
  void harvest();
  uint64_t through_step() const { return through_step_; }
  const DurationHistogram& step_seconds() const { return step_seconds_; }

 private:
  static constexpr size_t kSlots = 8;
  static constexpr uint64_t kEveryOnDevices = 8;
  struct Slot {
    uint64_t step = 0;  // 0: free
    std::unique_ptr<device::Event> ended;
  };

  StepMeter() = default;
  int64_t* stamps(size_t slot) const { return reinterpret_cast<int64_t*>(stamps_.data()) + 2 * slot; }

  device::Buffer stamps_;  // pinned i64 [kSlots, begin and end]
  std::vector<Slot> slots_;
  size_t next_ = 0;
  uint64_t every_ = 1;
  bool measuring_ = false;
  uint64_t through_step_ = 0;
  DurationHistogram step_seconds_;
};

}  // namespace llm_dist::engine
