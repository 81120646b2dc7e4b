// StepProfile: what the device did in each step, op by op, by the device's own clock, for `--profile`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/op_observer.h"
#include "src/device/backend.h"
#include "src/sched/step_plan.h"

namespace llm_dist::engine {

// Times are those of Stream::write_timestamp.
struct ProfiledOp {
  std::string name;  // "add_rms_norm"; of a product with its shape: "linear 960x576" (n × k on this rank)
  kernels::CallKind kind = kernels::CallKind::kOp;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct ProfiledStep {
  uint64_t step = 0;
  int64_t tokens = 0;
  int64_t sequences = 0;
  bool decode_only = false;
  int64_t begin_ns = 0;         // before its inputs are copied
  int64_t end_ns = 0;           // behind its last op
  std::vector<ProfiledOp> ops;  // in order, free of overlaps, within [begin_ns, end_ns]
};

// Two timestamps around each op on the compute stream, so that they run one after the other: where a backend
// lets a kernel's start overlap the end of the one before it, that is not seen. Work on other streams (a
// pipeline's sends) is not seen either. Only what is issued is: the inside of a replayed graph is not, so
// profiled steps are issued op by op. One thread calls begin, before, after and end.
class StepProfile : public kernels::OpObserver {
 public:
  // Records the first `capacity` ops, in whole steps; later steps are not recorded.
  static Result<std::unique_ptr<StepProfile>> create(device::Backend& backend, size_t capacity);

  void begin(const sched::StepPlan& plan, device::Stream& stream);
  void end(device::Stream& stream);
  void before(const kernels::OpCall& call, device::Stream& stream) override;
  void after(const kernels::OpCall& call, device::Stream& stream) override;

  // Those that began and ended. Only when the stream is idle.
  std::vector<ProfiledStep> steps() const;

 private:
  struct Op {
    const char* name;
    kernels::CallKind kind;
    int64_t n, k;  // of a product
  };
  struct Step {
    uint64_t step;
    int64_t tokens, sequences;
    bool decode_only;
    bool ended;
    size_t first_op, num_ops;
  };
  explicit StepProfile(size_t capacity);
  // Each step and each op has two stamps; those of a step stand before its ops'.
  int64_t* stamp(size_t index) const { return reinterpret_cast<int64_t*>(stamps_.data()) + index; }
  size_t step_stamp(size_t step) const { return 2 * (step + steps_[step].first_op); }

  size_t capacity_;
  bool recording_ = false;  // inside a step
  bool full_ = false;
  std::vector<Step> steps_;
  std::vector<Op> ops_;
  device::Buffer stamps_;  // pinned i64 [2 · (steps and ops)]
};

// Seconds between two timestamps with nothing between them: what each op's interval and each gap holds of
// the profile itself.
Result<double> timestamp_seconds(device::Backend& backend);

}  // namespace llm_dist::engine
