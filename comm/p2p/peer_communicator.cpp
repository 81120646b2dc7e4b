#include "comm/p2p/peer_communicator.h"

#include <optional>

#include "src/device/cuda/cuda_error.h"

namespace llm_dist::comm {
namespace {

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

// None: too large.
std::optional<PeerWay> way_for(int64_t bytes, const PeerLimits& limits) {
  if (bytes <= limits.packets_bytes) return PeerWay::kPackets;
  if (bytes <= limits.one_shot_bytes) return PeerWay::kOneShot;
  if (bytes <= limits.two_shot_bytes) return PeerWay::kTwoShot;
  return std::nullopt;
}

}  // namespace

PeerCommunicator::PeerCommunicator(std::unique_ptr<PeerResources> resources,
                                   std::unique_ptr<Communicator> fallback)
    : info_(resources->group().info), fallback_(std::move(fallback)), resources_(std::move(resources)) {
  info_.backend = "p2p+" + fallback_->info().backend;
}

void PeerCommunicator::all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) {
  CHECK(data.is_contiguous(), "{}", data.to_string());
  if (data.numel() == 0) return;
  std::optional<PeerWay> way;
  if (op == ReduceOp::kSum && is_float(data.dtype)) way = way_for(data.bytes(), resources_->group().limits);
  if (way) {
    sum(*way, data, stream);
  } else {
    fallback_->all_reduce(data, op, stream);
  }
}

void PeerCommunicator::sum(PeerWay way, const Tensor& data, device::Stream& stream) {
  CHECK(stream.device().type == DeviceType::kCuda, "a sum over GPUs on a stream of another device");
  Status status = error_.get();
  if (status.ok()) status = stream.error();
  if (status.ok()) {
    (void)cudaSetDevice(resources_->group().device_index);
    cudaError_t error = all_reduce_sum(way,
                                       resources_->view(),
                                       data.dtype,
                                       data.data,
                                       data.numel(),
                                       static_cast<cudaStream_t>(stream.native()));
    status = device::cuda_status(error, "all_reduce over peer memory");
    if (!status.ok()) abort(status);
  }
  if (!status.ok()) stream.fail(std::move(status));
}

void PeerCommunicator::all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) {
  fallback_->all_gather(in, out, stream);
}
void PeerCommunicator::reduce_scatter(const Tensor& in,
                                      const Tensor& out,
                                      ReduceOp op,
                                      device::Stream& stream) {
  fallback_->reduce_scatter(in, out, op, stream);
}
void PeerCommunicator::broadcast(const Tensor& data, int root, device::Stream& stream) {
  fallback_->broadcast(data, root, stream);
}
void PeerCommunicator::send(const Tensor& data, int peer, device::Stream& stream) {
  fallback_->send(data, peer, stream);
}
void PeerCommunicator::recv(const Tensor& data, int peer, device::Stream& stream) {
  fallback_->recv(data, peer, stream);
}
void PeerCommunicator::all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) {
  fallback_->all_to_all(in, out, stream);
}

Status PeerCommunicator::poll() const {
  RETURN_IF_ERROR(error_.get());
  return fallback_->poll();
}

void PeerCommunicator::abort(Status cause) {
  error_.set(cause);
  resources_->abort();
  fallback_->abort(std::move(cause));
}

}  // namespace llm_dist::comm
