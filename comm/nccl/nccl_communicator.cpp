#include "comm/nccl/nccl_communicator.h"

#include <cuda_runtime.h>

#include <cstring>
#include <thread>

namespace llm_dist::comm {
namespace {

Status nccl_status(ncclResult_t result, ncclComm_t comm, std::string_view what) {
  if (result == ncclSuccess || result == ncclInProgress) return ok_status();
  StatusCode code = result == ncclRemoteError ? StatusCode::kUnavailable : StatusCode::kInternal;
  const char* detail = ncclGetLastError(comm);
  return {code, format("{}: {} {}", what, ncclGetErrorString(result), detail == nullptr ? "" : detail)};
}

ncclDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return ncclFloat32;
    case DType::kF16: return ncclFloat16;
    case DType::kBF16: return ncclBfloat16;
    case DType::kI32: return ncclInt32;
    case DType::kI64: return ncclInt64;
    case DType::kU8: return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return ncclSum;
    case ReduceOp::kMax: return ncclMax;
    case ReduceOp::kMin: return ncclMin;
  }
  return ncclSum;
}

size_t count_of(const Tensor& tensor) {
  CHECK(tensor.is_contiguous(), "{}", tensor.to_string());
  return static_cast<size_t>(tensor.numel());
}

}  // namespace

Result<std::unique_ptr<Communicator>> NcclCommunicator::connect(const NcclGroup& group, Deadline deadline) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(group));
  cudaError_t error = cudaSetDevice(group.device_index);
  if (error != cudaSuccess) return internal_error(format("cudaSetDevice: {}", cudaGetErrorString(error)));
  ncclUniqueId id;
  if (group.id.size() != sizeof id) return data_loss("the id of an NCCL group");
  std::memcpy(&id, group.id.data(), sizeof id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclResult_t result = ncclCommInitRankConfig(&made->comm_, group.info.size, id, group.info.rank, &config);
  Status status = made->settle(result, deadline);
  if (!status.ok()) return status.with_context(format("connecting the GPUs of group {}", group.info.name));
  return std::unique_ptr<Communicator>(std::move(made));
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr || aborted_.load()) return;
  // Of a group in good order everything issued has run: there is nobody left to tell, and nothing to flush.
  (void)ncclCommAbort(comm_);
}

Status NcclCommunicator::settle(ncclResult_t result, Deadline deadline) {
  constexpr int kEagerPolls = 1000;
  for (int polls = 0; result == ncclInProgress; ++polls) {
    RETURN_IF_ERROR(error_.get());
    if (deadline.expired()) return deadline_exceeded("NCCL did not get in touch with every rank in time");
    if (polls > kEagerPolls) std::this_thread::sleep_for(std::chrono::microseconds(100));
    ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) return nccl_status(asked, comm_, "ncclCommGetAsyncError");
  }
  return nccl_status(result, comm_, "NCCL");
}

template <typename Call>
void NcclCommunicator::issue(device::Stream& stream, const char* what, Call&& call) {
  CHECK(stream.device().type == DeviceType::kCuda, "{} of NCCL on a stream of another device", what);
  Status status = error_.get();
  if (status.ok()) status = stream.error();
  if (status.ok()) {
    cudaSetDevice(group_.device_index);
    ncclResult_t result = call(static_cast<cudaStream_t>(stream.native()));
    status = settle(result, Deadline::after(group_.timeout)).with_context(what);
    if (!status.ok()) error_.set(status);
  }
  if (!status.ok()) stream.fail(std::move(status));
}

void NcclCommunicator::all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) {
  if (data.numel() == 0) return;
  issue(stream, "all_reduce", [&](cudaStream_t on) {
    return ncclAllReduce(
        data.data, data.data, count_of(data), data_type(data.dtype), reduction(op), comm_, on);
  });
}

void NcclCommunicator::all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) {
  CHECK_EQ(in.numel() * info_.size, out.numel());
  if (in.numel() == 0) return;
  issue(stream, "all_gather", [&](cudaStream_t on) {
    return ncclAllGather(in.data, out.data, count_of(in), data_type(in.dtype), comm_, on);
  });
}

void NcclCommunicator::reduce_scatter(const Tensor& in,
                                      const Tensor& out,
                                      ReduceOp op,
                                      device::Stream& stream) {
  CHECK_EQ(out.numel() * info_.size, in.numel());
  if (in.numel() == 0) return;
  issue(stream, "reduce_scatter", [&](cudaStream_t on) {
    return ncclReduceScatter(in.data, out.data, count_of(out), data_type(in.dtype), reduction(op), comm_, on);
  });
}

void NcclCommunicator::broadcast(const Tensor& data, int root, device::Stream& stream) {
  if (data.numel() == 0) return;
  issue(stream, "broadcast", [&](cudaStream_t on) {
    return ncclBroadcast(data.data, data.data, count_of(data), data_type(data.dtype), root, comm_, on);
  });
}

void NcclCommunicator::send(const Tensor& data, int peer, device::Stream& stream) {
  if (data.numel() == 0) return;
  issue(stream, "send", [&](cudaStream_t on) {
    return ncclSend(data.data, count_of(data), data_type(data.dtype), peer, comm_, on);
  });
}

void NcclCommunicator::recv(const Tensor& data, int peer, device::Stream& stream) {
  if (data.numel() == 0) return;
  issue(stream, "recv", [&](cudaStream_t on) {
    return ncclRecv(data.data, count_of(data), data_type(data.dtype), peer, comm_, on);
  });
}

void NcclCommunicator::all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) {
  CHECK_EQ(in.numel(), out.numel());
  if (in.numel() == 0) return;
  const size_t part = count_of(in) / static_cast<size_t>(info_.size);
  const size_t part_bytes = part * static_cast<size_t>(dtype_bytes(in.dtype));
  issue(stream, "all_to_all", [&](cudaStream_t on) {
    (void)ncclGroupStart();
    for (int peer = 0; peer < info_.size; ++peer) {
      const size_t at = part_bytes * static_cast<size_t>(peer);
      (void)ncclSend(static_cast<std::byte*>(in.data) + at, part, data_type(in.dtype), peer, comm_, on);
      (void)ncclRecv(static_cast<std::byte*>(out.data) + at, part, data_type(in.dtype), peer, comm_, on);
    }
    return ncclGroupEnd();  // an error of any call inside comes back here
  });
}

Status NcclCommunicator::poll() const {
  RETURN_IF_ERROR(error_.get());
  ncclResult_t state = ncclSuccess;
  ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  Status status = nccl_status(asked == ncclSuccess ? state : asked, comm_, "group " + info_.name);
  if (!status.ok()) error_.set(status);
  return status;
}

void NcclCommunicator::abort(Status cause) {
  error_.set(std::move(cause));
  if (!aborted_.exchange(true)) (void)ncclCommAbort(comm_);
}

}  // namespace llm_dist::comm
