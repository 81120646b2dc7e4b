#include "comm/cpu_communicator.h"

#include "comm/reduce.h"
#include "src/base/clock.h"
#include "src/device/cpu/cpu_stream.h"

namespace llm_dist::comm {
namespace {

void check_host_tensor(const Tensor& tensor) {
  CHECK(tensor.device.type == DeviceType::kCpu, "{} in a communicator over host memory", tensor.to_string());
  CHECK(tensor.is_contiguous(), "{} is not contiguous", tensor.to_string());
}

// The call whose part is `part` elements of `in`'s type.
CollectiveCall checked_call(Collective kind, const Tensor& in, const Tensor& out, int64_t part) {
  check_host_tensor(in);
  check_host_tensor(out);
  CHECK_EQ(in.dtype, out.dtype);
  return {.kind = kind,
          .dtype = in.dtype,
          .count = part,
          .bytes = static_cast<size_t>(part * dtype_bytes(in.dtype)),
          .in = static_cast<const std::byte*>(in.data),
          .out = static_cast<std::byte*>(out.data)};
}

}  // namespace

std::string_view to_string(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kAllGather: return "all_gather";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kSend: return "send";
    case Collective::kRecv: return "recv";
  }
  return "unknown";
}

std::string to_string(const CollectiveCall& call) {
  return format("{} of {} {}", call.kind, call.count, call.dtype);
}

void CpuCommunicator::issue(const CollectiveCall& call, device::Stream& stream) {
  device::CpuStream& cpu = device::as_cpu(stream);
  if (call.bytes == 0) return;
  cpu.enqueue([this, call, &cpu] {
    int64_t begin = now_ns();
    Status status = run(call);
    note(call.kind, now_ns() - begin);
    if (!status.ok()) cpu.fail(std::move(status));
  });
}

void CpuCommunicator::note(Collective kind, int64_t ns) {
  auto index = static_cast<size_t>(kind);
  calls_[index].fetch_add(1, std::memory_order_relaxed);
  ns_[index].fetch_add(ns, std::memory_order_relaxed);
}

CollectiveTimes CpuCommunicator::collective_times() const {
  CollectiveTimes times;
  for (size_t i = 0; i < kNumCollectives; ++i) {
    times.calls[i] = calls_[i].load(std::memory_order_relaxed);
    times.ns[i] = ns_[i].load(std::memory_order_relaxed);
  }
  return times;
}

void CpuCommunicator::all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) {
  CHECK(is_reducible(data.dtype), "a reduction over {}", data.to_string());
  CollectiveCall call = checked_call(Collective::kAllReduce, data, data, data.numel());
  call.op = op;
  issue(call, stream);
}

void CpuCommunicator::all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) {
  CHECK_EQ(in.numel() * info_.size, out.numel());
  issue(checked_call(Collective::kAllGather, in, out, in.numel()), stream);
}

void CpuCommunicator::reduce_scatter(const Tensor& in,
                                     const Tensor& out,
                                     ReduceOp op,
                                     device::Stream& stream) {
  CHECK(is_reducible(in.dtype), "a reduction over {}", in.to_string());
  CHECK_EQ(in.numel(), out.numel() * info_.size);
  CollectiveCall call = checked_call(Collective::kReduceScatter, in, out, out.numel());
  call.op = op;
  issue(call, stream);
}

void CpuCommunicator::broadcast(const Tensor& data, int root, device::Stream& stream) {
  CHECK(root >= 0 && root < info_.size, "root {} of {}", root, info_.size);
  CollectiveCall call = checked_call(Collective::kBroadcast, data, data, data.numel());
  call.peer = root;
  issue(call, stream);
}

void CpuCommunicator::send(const Tensor& data, int peer, device::Stream& stream) {
  CHECK(peer >= 0 && peer < info_.size && peer != info_.rank, "send from {} to {}", info_.rank, peer);
  CollectiveCall call = checked_call(Collective::kSend, data, data, data.numel());
  call.peer = peer;
  issue(call, stream);
}

void CpuCommunicator::recv(const Tensor& data, int peer, device::Stream& stream) {
  CHECK(peer >= 0 && peer < info_.size && peer != info_.rank, "recv at {} from {}", info_.rank, peer);
  CollectiveCall call = checked_call(Collective::kRecv, data, data, data.numel());
  call.peer = peer;
  issue(call, stream);
}

void CpuCommunicator::all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) {
  CHECK_EQ(in.numel(), out.numel());
  CHECK(in.numel() % info_.size == 0, "{} in {} parts", in.to_string(), info_.size);
  CHECK(in.data != out.data || in.numel() == 0, "all_to_all in place");
  issue(checked_call(Collective::kAllToAll, in, out, in.numel() / info_.size), stream);
}

}  // namespace llm_dist::comm
