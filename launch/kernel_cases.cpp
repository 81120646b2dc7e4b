#include "launch/kernel_cases.h"

#include <algorithm>
#include <set>

namespace llm_dist::launch {
namespace {

using namespace kernels;

constexpr double kCaseSeconds = 0.25;  // for one case, about
constexpr int kLeastPasses = 5;
constexpr int kMostPasses = 1000;
constexpr size_t kCallsInPass = 32;  // at least, so that a timestamp's own time does not show

void issue(const Ops&, const std::monostate&) {}
void issue(const Ops& ops, const EmbeddingParams& p) { ops.embedding(p); }
void issue(const Ops& ops, const RmsNormParams& p) { ops.rms_norm(p); }
void issue(const Ops& ops, const AddRmsNormParams& p) { ops.add_rms_norm(p); }
void issue(const Ops& ops, const AddParams& p) { ops.add(p); }
void issue(const Ops& ops, const LinearParams& p) { ops.linear(p); }
void issue(const Ops& ops, const LinearSharesParams& p) { ops.linear_shares(p); }
void issue(const Ops& ops, const LinearSiluAndMulParams& p) { ops.linear_silu_and_mul(p); }
void issue(const Ops& ops, const SiluAndMulParams& p) { ops.silu_and_mul(p); }
void issue(const Ops& ops, const RopeAppendParams& p) { ops.rope_append(p); }
void issue(const Ops& ops, const AttentionPlanParams& p) { ops.attention_plan(p); }
void issue(const Ops& ops, const AttentionParams& p) { ops.attention(p); }
void issue(const Ops& ops, const GatherTokensParams& p) { ops.gather_tokens(p); }
void issue(const Ops& ops, const ScatterTokensParams& p) { ops.scatter_tokens(p); }
void issue(const Ops& ops, const GatherRowsParams& p) { ops.gather_rows(p); }
void issue(const Ops& ops, const SampleParams& p) { ops.sample(p); }
void issue(const Ops& ops, const ArgmaxShardParams& p) { ops.argmax_shard(p); }
void issue(const Ops& ops, const ArgmaxMergeParams& p) { ops.argmax_merge(p); }

// Null where the op has no weight.
Weight* weight_of(OpValues& call) {
  if (auto* linear = std::get_if<LinearParams>(&call)) return &linear->weight;
  if (auto* shares = std::get_if<LinearSharesParams>(&call)) return &shares->weight;
  if (auto* gated = std::get_if<LinearSiluAndMulParams>(&call)) return &gated->weight;
  return nullptr;
}

OpValues value_of(const OpParams& params) {
  return std::visit(
      [](const auto& p) -> OpValues {
        if constexpr (std::is_same_v<std::decay_t<decltype(p)>, std::monostate>) {
          return {};
        } else {
          return *p;
        }
      },
      params);
}

std::string label_of(const OpCall& call) {
  const Weight* weight = linear_weight(call.params);
  if (weight == nullptr) return call.name;
  return format("{} {}x{}", call.name, weight->n, weight->k);
}

// The calls of a case with as many weights as its footprint asks for. Owns the copies.
struct Rotation {
  std::vector<OpValues> calls;
  std::vector<device::Buffer> copies;
};

Result<device::Buffer> copy_of(StreamTimer& timer, Weight& weight) {
  constexpr int64_t kAlignment = 256;
  auto aligned = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  int64_t bytes = 0;
  for (const Tensor& part : weight.parts) bytes += part ? aligned(part.bytes()) : 0;
  ASSIGN_OR_RETURN(device::Buffer buffer, timer.backend().allocate(bytes, device::MemoryKind::kDevice));
  int64_t at = 0;
  for (Tensor& part : weight.parts) {
    if (!part) continue;
    timer.stream().copy(buffer.view(part.dtype, {part.numel()}, at), part.reshaped({part.numel()}));
    part.data = buffer.data() + at;
    at += aligned(part.bytes());
  }
  return buffer;
}

Result<Rotation> rotation_of(StreamTimer& timer, const KernelCase& kernel, int64_t footprint_bytes) {
  Rotation rotation{.calls = kernel.calls, .copies = {}};
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (OpValues& call : rotation.calls) {
    const Weight* weight = weight_of(call);
    if (weight != nullptr && seen.insert(weight->parts[0].data).second) bytes += weight->bytes();
  }
  for (size_t next = 0; bytes > 0 && bytes < footprint_bytes; ++next) {
    OpValues call = kernel.calls[next % kernel.calls.size()];
    Weight* weight = weight_of(call);
    ASSIGN_OR_RETURN(device::Buffer buffer, copy_of(timer, *weight));
    bytes += weight->bytes();
    rotation.copies.push_back(std::move(buffer));
    rotation.calls.push_back(call);
  }
  size_t own = rotation.calls.size();
  while (rotation.calls.size() < kCallsInPass)
    rotation.calls.push_back(rotation.calls[rotation.calls.size() % own]);
  RETURN_IF_ERROR(timer.synchronize());
  return rotation;
}

}  // namespace

void KernelRecorder::begin() {
  on_ = true;
  costs_ = {};
  cases_.clear();
}

void KernelRecorder::before(const OpCall& call, device::Stream&) {
  if (!on_ || call.kind != CallKind::kOp) return;
  std::string label = label_of(call);
  auto same = [&](const KernelCase& known) { return known.label == label && known.rows == call.rows; };
  auto found = std::find_if(cases_.begin(), cases_.end(), same);
  if (found == cases_.end()) {
    bool planned = std::holds_alternative<const AttentionPlanParams*>(call.params);
    cases_.push_back({.label = label, .rows = call.rows, .cost = {}, .calls = {}, .planned = planned});
    found = cases_.end() - 1;
  }
  OpCost cost = costs_.of(call.params);
  found->cost.f8_weight = cost.f8_weight;
  found->calls.push_back(value_of(call.params));
  double share = 1.0 / static_cast<double>(found->calls.size());
  found->cost.bytes += (cost.bytes - found->cost.bytes) * share;
  found->cost.flops += (cost.flops - found->cost.flops) * share;
}

Result<double> time_case(const Ops& ops,
                         StreamTimer& timer,
                         const KernelCase& kernel,
                         int64_t footprint_bytes) {
  ASSIGN_OR_RETURN(Rotation rotation, rotation_of(timer, kernel, footprint_bytes));
  std::function<void()> pass = [&] {
    for (const OpValues& call : rotation.calls)
      std::visit([&](const auto& params) { issue(ops, params); }, call);
  };
  pass();
  RETURN_IF_ERROR(timer.synchronize());
  std::unique_ptr<device::Graph> graph;
  if (timer.backend().prefers_graphs() && !kernel.planned) {
    ASSIGN_OR_RETURN(graph, timer.capture(1, pass));
    pass = [&] { graph->launch(timer.stream()); };
  }
  ASSIGN_OR_RETURN(std::vector<double> first, timer.times_of(2, pass));
  int passes =
      std::clamp(static_cast<int>(kCaseSeconds / std::max(1e-6, first.back())), kLeastPasses, kMostPasses);
  ASSIGN_OR_RETURN(std::vector<double> seconds, timer.times_of(passes, pass));
  return median(std::move(seconds)) / static_cast<double>(rotation.calls.size());
}

}  // namespace llm_dist::launch
