#include "src/engine/step_profile.h"

#include <algorithm>

namespace llm_dist::engine {
namespace {

constexpr double kDeadlineSeconds = 60;

std::string label_of(const char* name, int64_t n, int64_t k) {
  return n == 0 ? std::string(name) : format("{} {}x{}", name, n, k);
}

}  // namespace

StepProfile::StepProfile(size_t capacity) : capacity_(capacity) {
  steps_.reserve(capacity);
  ops_.reserve(capacity);
}

Result<std::unique_ptr<StepProfile>> StepProfile::create(device::Backend& backend, size_t capacity) {
  std::unique_ptr<StepProfile> profile(new StepProfile(capacity));
  // A step has one op at least.
  auto bytes = static_cast<int64_t>(2 * 2 * capacity * sizeof(int64_t));
  ASSIGN_OR_RETURN(profile->stamps_, backend.allocate(bytes, device::MemoryKind::kPinned));
  return profile;
}

void StepProfile::begin(const sched::StepPlan& plan, device::Stream& stream) {
  full_ = full_ || steps_.size() == capacity_;
  if (full_) return;
  recording_ = true;
  steps_.push_back({.step = plan.step,
                    .tokens = plan.num_tokens(),
                    .sequences = static_cast<int64_t>(plan.runs.size()),
                    .decode_only = plan.decode_only(),
                    .ended = false,
                    .first_op = ops_.size(),
                    .num_ops = 0});
  stream.write_timestamp(stamp(step_stamp(steps_.size() - 1)));
}

void StepProfile::end(device::Stream& stream) {
  if (!recording_) return;
  recording_ = false;
  steps_.back().ended = true;
  stream.write_timestamp(stamp(step_stamp(steps_.size() - 1) + 1));
}

void StepProfile::before(const kernels::OpCall& call, device::Stream& stream) {
  if (!recording_) return;
  if (ops_.size() == capacity_) {
    recording_ = false;
    full_ = true;
    return;
  }
  const Weight* weight = kernels::linear_weight(call.params);
  ops_.push_back({.name = call.name,
                  .kind = call.kind,
                  .n = weight != nullptr ? weight->n : 0,
                  .k = weight != nullptr ? weight->k : 0});
  ++steps_.back().num_ops;
  stream.write_timestamp(stamp(2 * (steps_.size() + ops_.size() - 1)));
}

void StepProfile::after(const kernels::OpCall&, device::Stream& stream) {
  if (recording_) stream.write_timestamp(stamp(2 * (steps_.size() + ops_.size() - 1) + 1));
}

std::vector<ProfiledStep> StepProfile::steps() const {
  std::vector<ProfiledStep> done;
  done.reserve(steps_.size());
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const int64_t* stamps = stamp(step_stamp(i));
    if (!step.ended || stamps[0] == 0 || stamps[1] == 0) continue;
    ProfiledStep& out = done.emplace_back();
    out.step = step.step;
    out.tokens = step.tokens;
    out.sequences = step.sequences;
    out.decode_only = step.decode_only;
    out.begin_ns = stamps[0];
    out.end_ns = stamps[1];
    out.ops.reserve(step.num_ops);
    for (size_t j = 0; j < step.num_ops; ++j) {
      const Op& op = ops_[step.first_op + j];
      const int64_t* of_op = stamps + 2 * (j + 1);
      out.ops.push_back({label_of(op.name, op.n, op.k), op.kind, of_op[0], of_op[1]});
    }
  }
  return done;
}

Result<double> timestamp_seconds(device::Backend& backend) {
  constexpr int kStamps = 256;
  ASSIGN_OR_RETURN(
      device::Buffer buffer,
      backend.allocate(kStamps * static_cast<int64_t>(sizeof(int64_t)), device::MemoryKind::kPinned));
  std::unique_ptr<device::Stream> stream = backend.make_stream("timestamps");
  auto* stamps = reinterpret_cast<int64_t*>(buffer.data());
  for (int i = 0; i < kStamps; ++i) stream->write_timestamp(stamps + i);
  RETURN_IF_ERROR(stream->synchronize(Deadline::after_seconds(kDeadlineSeconds)));
  return static_cast<double>(stamps[kStamps - 1] - stamps[0]) * 1e-9 / (kStamps - 1);
}

}  // namespace llm_dist::engine
