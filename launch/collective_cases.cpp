#include "launch/collective_cases.h"

#include <algorithm>
#include <utility>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

constexpr std::pair<CollectiveKind, std::string_view> kNames[] = {
    {CollectiveKind::kAllReduce, "all_reduce"},
    {CollectiveKind::kReduceScatter, "reduce_scatter"},
    {CollectiveKind::kAllGather, "all_gather"},
    {CollectiveKind::kAllToAll, "all_to_all"},
    {CollectiveKind::kBroadcast, "broadcast"},
    {CollectiveKind::kSendRecv, "send_recv"},
};

}  // namespace

std::string_view to_string(CollectiveKind kind) {
  for (const auto& [known, name] : kNames) {
    if (known == kind) return name;
  }
  return "unknown";
}

Result<CollectiveKind> parse_collective(const std::string& name) {
  std::string all;
  for (const auto& [kind, known] : kNames) {
    if (known == name) return kind;
    all += (all.empty() ? "" : ", ") + std::string(known);
  }
  return invalid_argument(format("--op {} is none of {}", name, all));
}

double bus_factor(CollectiveKind kind, int ranks) {
  double others = static_cast<double>(ranks - 1) / ranks;
  switch (kind) {
    case CollectiveKind::kAllReduce: return 2 * others;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll: return others;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSendRecv: return 1;
  }
  return 1;
}

Result<CollectiveCases> CollectiveCases::create(device::Backend& backend,
                                                comm::Communicator& group,
                                                comm::Communicator& hand_off,
                                                DType dtype,
                                                int64_t max_bytes) {
  CollectiveCases cases;
  cases.group_ = &group;
  cases.hand_off_ = &hand_off;
  cases.dtype_ = dtype;
  int64_t bytes = cases.bytes_of(max_bytes);
  ASSIGN_OR_RETURN(cases.in_, backend.allocate(bytes, device::MemoryKind::kDevice));
  ASSIGN_OR_RETURN(cases.out_, backend.allocate(bytes, device::MemoryKind::kDevice));
  return cases;
}

int64_t CollectiveCases::bytes_of(int64_t about) const {
  int64_t granule = dtype_bytes(dtype_) * ranks();
  return std::max<int64_t>(1, about / granule) * granule;
}

void CollectiveCases::issue(CollectiveKind kind, int64_t bytes, device::Stream& stream) const {
  int64_t elements = bytes / dtype_bytes(dtype_);
  Tensor in = in_.view(dtype_, {elements});
  Tensor out = out_.view(dtype_, {elements});
  int64_t part = elements / ranks();
  switch (kind) {
    case CollectiveKind::kAllReduce: return group_->all_reduce(in, comm::ReduceOp::kSum, stream);
    case CollectiveKind::kReduceScatter:
      return group_->reduce_scatter(in, out.rows(0, part), comm::ReduceOp::kSum, stream);
    case CollectiveKind::kAllGather: return group_->all_gather(in.rows(0, part), out, stream);
    case CollectiveKind::kAllToAll: return group_->all_to_all(in, out, stream);
    case CollectiveKind::kBroadcast: return group_->broadcast(in, 0, stream);
    case CollectiveKind::kSendRecv: return ping_pong(elements, stream);
  }
}

void CollectiveCases::ping_pong(int64_t elements, device::Stream& stream) const {
  int rank = group_->info().rank;
  int peer = rank ^ 1;
  if (peer >= ranks()) return;  // the odd one out
  Tensor in = in_.view(dtype_, {elements});
  Tensor out = out_.view(dtype_, {elements});
  bool serves = rank < peer;
  if (serves) hand_off_->send(in, peer, stream);
  hand_off_->recv(out, peer, stream);
  if (!serves) hand_off_->send(in, peer, stream);
}

}  // namespace llm_dist::launch
