#include "src/engine/step_meter.h"

#include <algorithm>

namespace llm_dist::engine {

Result<std::unique_ptr<StepMeter>> StepMeter::create(device::Backend& backend) {
  std::unique_ptr<StepMeter> meter(new StepMeter());
  auto bytes = static_cast<int64_t>(2 * kSlots * sizeof(int64_t));
  ASSIGN_OR_RETURN(meter->stamps_, backend.allocate(bytes, device::MemoryKind::kPinned));
  meter->slots_.resize(kSlots);
  for (Slot& slot : meter->slots_) slot.ended = backend.make_event();
  if (backend.prefers_graphs()) meter->every_ = kEveryOnDevices;
  return meter;
}

void StepMeter::begin(uint64_t step, device::Stream& stream) {
  measuring_ = false;
  if (step % every_ != 0) return;
  harvest();
  Slot& slot = slots_[next_];
  if (slot.step != 0) return;  // the device is that far behind: this step goes unmeasured
  slot.step = step;
  measuring_ = true;
  stream.write_timestamp(stamps(next_));
}

void StepMeter::end(device::Stream& stream) {
  if (!measuring_) return;
  measuring_ = false;
  stream.write_timestamp(stamps(next_) + 1);
  stream.record(*slots_[next_].ended);
  next_ = (next_ + 1) % kSlots;
}

void StepMeter::harvest() {
  for (size_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots_[i];
    bool open = measuring_ && i == next_;
    if (slot.step == 0 || open || !slot.ended->complete()) continue;
    int64_t ns = stamps(i)[1] - stamps(i)[0];
    if (ns > 0) step_seconds_.add(static_cast<double>(ns) * 1e-9);  // else the stream has failed
    through_step_ = std::max(through_step_, slot.step);
    slot.step = 0;
  }
}

}  // namespace llm_dist::engine
