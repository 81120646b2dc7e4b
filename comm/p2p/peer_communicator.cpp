#include "comm/p2p/peer_communicator.h"

#include "comm/p2p/exchange.h"
#include "comm/p2p/messages.h"
#include "comm/p2p/norm_sum.h"
#include "comm/p2p/shared_norm.h"
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

void check_moved(const Tensor& in, const Tensor& out) {
  CHECK(in.is_contiguous() && out.is_contiguous(), "{} to {}", in.to_string(), out.to_string());
  CHECK(in.dtype == out.dtype, "{} to {}", in.to_string(), out.to_string());
}

// Contiguous, and aligned to units.
bool is_packed(const Tensor& tensor) {
  return tensor.is_contiguous() && reinterpret_cast<uintptr_t>(tensor.data) % kUnitBytes == 0;
}

bool is_like(const Tensor& tensor, int64_t rows, int64_t hidden, DType dtype) {
  return tensor.rank == 2 && tensor.dim(0) == rows && tensor.dim(1) == hidden && tensor.dtype == dtype &&
         is_packed(tensor);
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
  if (!way) {
    fallback_->all_reduce(data, op, stream);
    return;
  }
  issue("all_reduce over peer memory", stream, [&](cudaStream_t on) {
    return all_reduce_sum(*way, resources_->view(), data.dtype, data.data, data.numel(), on);
  });
}

bool PeerCommunicator::takes(int64_t rows, int64_t hidden, DType dtype) const {
  return sums_into_norm(rows, hidden, dtype) &&
         rows * hidden * dtype_bytes(dtype) <= resources_->group().limits.norm_bytes;
}

void PeerCommunicator::all_reduce_add_rms_norm(const SumAndNorm& call, device::Stream& stream) {
  const int64_t hidden = call.weight.numel();
  CHECK(takes(call.x.dim(0), hidden, call.x.dtype), "a sum and norm of {}", call.x.to_string());
  for (const Tensor* rows : {&call.x, &call.residual, &call.out})
    CHECK(is_like(*rows, call.x.dim(0), hidden, call.x.dtype), "{}", rows->to_string());
  CHECK(call.weight.dtype == call.x.dtype && is_packed(call.weight), "{}", call.weight.to_string());
  const NormRows rows{.x = call.x.data,
                      .residual = call.residual.data,
                      .weight = call.weight.data,
                      .out = call.out.data,
                      .epsilon = call.epsilon,
                      .rows = call.x.dim(0),
                      .width = static_cast<int>(hidden),
                      .sent = call.sent};
  const bool two_trips = goes_in_two_trips(rows.rows, hidden, call.x.dtype);
  issue("all_reduce_add_rms_norm over peer memory", stream, [&](cudaStream_t on) {
    return sum_into_norm(resources_->view(), call.x.dtype, rows, two_trips, on);
  });
}

bool PeerCommunicator::goes_in_two_trips(int64_t rows, int64_t hidden, DType dtype) const {
  return rows > 1 && rows * hidden * dtype_bytes(dtype) > resources_->group().limits.norm_one_trip_bytes;
}

device::PeerTerms PeerCommunicator::terms(int64_t rows, int64_t hidden, DType dtype) const {
  const PeerView& view = resources_->view();
  if (!takes(rows, hidden, dtype) || view.shares_gpu || view.under_mps || error_.failed()) return {};
  return terms_of_rows(resources_->view(), hidden, goes_in_two_trips(rows, hidden, dtype));
}

bool PeerCommunicator::takes_shares(int64_t rows, int64_t hidden, DType dtype) const {
  return norms_shares(rows, hidden, dtype, info_.size) &&
         rows * hidden * dtype_bytes(dtype) <= resources_->group().limits.shared_bytes;
}

Tensor PeerCommunicator::shared_rows(
    int rank, int64_t offset, int64_t rows, int64_t hidden, DType dtype) const {
  const Device gpu{DeviceType::kCuda, static_cast<int16_t>(resources_->group().device_index)};
  return Tensor::contiguous(resources_->view().memory[rank] + offset, dtype, {rows, hidden}, gpu);
}

bool PeerCommunicator::are_handed(int64_t rows, int64_t hidden, DType dtype) const {
  return hands_terms_ && rows * hidden * dtype_bytes(dtype) >= resources_->group().limits.handed_bytes;
}
Tensor PeerCommunicator::shared_term(int rank, int64_t rows, int64_t hidden, DType dtype) const {
  CHECK(rank >= 0 && rank < info_.size, "rank {} of {}", rank, info_.size);
  if (!takes_shares(rows, hidden, dtype)) return {};
  const bool handed = are_handed(rows, hidden, dtype);
  const int64_t share = rows / info_.size;
  return shared_rows(handed ? rank : info_.rank, resources_->view().layout.term, rows, hidden, dtype)
      .rows((handed ? info_.rank : rank) * share, share);
}
Tensor PeerCommunicator::shared_out(int64_t rows, int64_t hidden, DType dtype) const {
  if (!takes_shares(rows, hidden, dtype)) return {};
  return shared_rows(info_.rank, resources_->view().layout.normed, rows, hidden, dtype);
}

device::HandedRows PeerCommunicator::handed_rows(int64_t rows,
                                                 int64_t hidden,
                                                 DType dtype,
                                                 bool codes) const {
  const PeerView& view = resources_->view();
  if (!takes_shares(rows, hidden, dtype) || view.shares_gpu || view.under_mps) return {};
  auto word = [&](int64_t offset) { return view.memory[view.rank] + offset; };
  const int64_t row_bytes = hidden * (codes ? 1 : dtype_bytes(dtype));
  device::HandedRows handed{.calls = reinterpret_cast<const uint64_t*>(word(view.layout.kept_calls)),
                            .warps_done = reinterpret_cast<uint32_t*>(word(view.layout.handing_done)),
                            .share_bytes = rows / view.size * row_bytes,
                            .row_bytes = row_bytes,
                            .aborted = view.aborted,
                            .rank = view.rank,
                            .size = view.size};
  for (int rank = 0; rank < view.size; ++rank) {
    handed.rows[rank] = view.memory[rank] + view.layout.normed;
    handed.come[rank] = reinterpret_cast<uint64_t*>(view.memory[rank] + view.layout.handed_flags);
  }
  return handed;
}

void PeerCommunicator::add_rms_norm_of_shares(const SharesAndNorm& call, device::Stream& stream) {
  const int64_t rows = call.residual.dim(0) * info_.size;
  const int64_t hidden = call.weight.numel();
  const DType dtype = call.residual.dtype;
  const bool codes = static_cast<bool>(call.out_scales);
  CHECK(is_like(call.out, rows, hidden, codes ? DType::kF8E4M3 : dtype), "{}", call.out.to_string());
  CHECK(call.out.data == shared_out(rows, hidden, dtype).data, "an out that the peers do not see");
  CHECK(!codes || (is_like(call.out_scales, 1, rows, DType::kF32) &&
                   call.out_scales.data == static_cast<std::byte*>(call.out.data) + call.out.bytes()),
        "scales {} of {}",
        call.out_scales.to_string(),
        call.out.to_string());
  CHECK(call.weight.dtype == dtype && is_packed(call.weight), "{}", call.weight.to_string());
  CHECK(!call.kept || handed_rows(rows, hidden, dtype, codes).size > 0, "{} rows to be kept", rows);
  sum_shares(call, stream);
}

void PeerCommunicator::add_shares(const Tensor& residual, device::Stream& stream) {
  sum_shares({.residual = residual}, stream);
}

void PeerCommunicator::sum_shares(const SharesAndNorm& call, device::Stream& stream) {
  const int64_t share = call.residual.dim(0);
  const int64_t hidden = call.residual.dim(1);
  const DType dtype = call.residual.dtype;
  CHECK(takes_shares(share * info_.size, hidden, dtype) && is_like(call.residual, share, hidden, dtype),
        "a sum of shares of {}",
        call.residual.to_string());
  const ShareRows rows{.residual = call.residual.data,
                       .weight = call.weight.data,
                       .epsilon = call.epsilon,
                       .rows = static_cast<int>(share),
                       .width = static_cast<int>(hidden),
                       .handed = are_handed(share * info_.size, hidden, dtype),
                       .kept = call.kept,
                       .codes = static_cast<bool>(call.out_scales)};
  issue("a sum of shares over peer memory", stream, [&](cudaStream_t on) {
    return norm_shares(resources_->view(), dtype, rows, on);
  });
}

template <typename Launch>
void PeerCommunicator::issue(const char* what, device::Stream& stream, Launch&& launch) {
  CHECK(stream.device().type == DeviceType::kCuda, "{} on a stream of another device", what);
  auto* on = static_cast<cudaStream_t>(stream.native());
  Status status = error_.get();
  if (status.ok()) status = stream.error();
  if (status.ok()) {
    (void)cudaSetDevice(resources_->group().device_index);
    status = device::cuda_status(launch(on), what);
    if (!status.ok()) abort(status);
  }
  if (!status.ok()) stream.fail(std::move(status));
}

std::optional<PeerWay> PeerCommunicator::way_of_parts(int64_t part_bytes) const {
  const PeerLimits& limits = resources_->group().limits;
  if (part_bytes <= limits.packets_bytes) return PeerWay::kPackets;
  if (part_bytes * info_.size <= limits.parts_bytes) return PeerWay::kOneShot;
  return std::nullopt;
}

void PeerCommunicator::all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) {
  CHECK_EQ(in.numel() * info_.size, out.numel());
  check_moved(in, out);
  if (in.numel() == 0) return;
  const std::optional<PeerWay> way = way_of_parts(in.bytes());
  if (!way) {
    fallback_->all_gather(in, out, stream);
    return;
  }
  issue("all_gather over peer memory", stream, [&](cudaStream_t on) {
    const PartsToMove parts{.in = in.data, .out = out.data, .bytes = in.bytes(), .same_for_all = true};
    return move_parts(*way, resources_->view(), parts, on);
  });
}
void PeerCommunicator::reduce_scatter(const Tensor& in,
                                      const Tensor& out,
                                      ReduceOp op,
                                      device::Stream& stream) {
  CHECK_EQ(out.numel() * info_.size, in.numel());
  check_moved(in, out);
  if (in.numel() == 0) return;
  std::optional<PeerWay> way;
  if (op == ReduceOp::kSum && is_float(in.dtype)) way = way_of_parts(out.bytes());
  if (!way) {
    fallback_->reduce_scatter(in, out, op, stream);
    return;
  }
  issue("reduce_scatter over peer memory", stream, [&](cudaStream_t on) {
    const PartsToSum parts{.in = in.data, .out = out.data, .dtype = in.dtype, .count = out.numel()};
    return sum_parts(*way, resources_->view(), parts, on);
  });
}
void PeerCommunicator::broadcast(const Tensor& data, int root, device::Stream& stream) {
  fallback_->broadcast(data, root, stream);
}

std::optional<Message> PeerCommunicator::message_of(const Tensor& data, int peer) const {
  const PeerLimits& limits = resources_->group().limits;
  if (data.bytes() > limits.message_bytes) return std::nullopt;
  return Message{.data = data.data,
                 .bytes = data.bytes(),
                 .peer = peer,
                 .as_packets = data.bytes() <= limits.message_packets_bytes};
}

void PeerCommunicator::send(const Tensor& data, int peer, device::Stream& stream) {
  CHECK(data.is_contiguous(), "{}", data.to_string());
  if (data.numel() == 0) return;
  std::optional<Message> message = message_of(data, peer);
  if (!message) {
    fallback_->send(data, peer, stream);
    return;
  }
  issue("send over peer memory", stream, [&](cudaStream_t on) {
    message->number = resources_->gates().number_to(peer, on);
    return send_message(resources_->view(), *message, on);
  });
}
void PeerCommunicator::recv(const Tensor& data, int peer, device::Stream& stream) {
  CHECK(data.is_contiguous(), "{}", data.to_string());
  if (data.numel() == 0) return;
  const std::optional<Message> message = message_of(data, peer);
  if (!message) {
    fallback_->recv(data, peer, stream);
    return;
  }
  issue("recv over peer memory", stream, [&](cudaStream_t on) {
    const cudaError_t error = resources_->gates().wait_for(peer, on);
    return error != cudaSuccess ? error : receive_message(resources_->view(), *message, on);
  });
}
bool PeerCommunicator::waits_on_device() const {
  const bool has_all = resources_->group().limits.message_bytes >= kMostMessageBytes;
  return !resources_->gates().work() || (!has_all && fallback_->waits_on_device());
}

void PeerCommunicator::all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) {
  CHECK_EQ(in.numel(), out.numel());
  CHECK_EQ(in.numel() % info_.size, 0);
  check_moved(in, out);
  if (in.numel() == 0) return;
  const int64_t part_bytes = in.bytes() / info_.size;
  const std::optional<PeerWay> way = way_of_parts(part_bytes);
  if (!way) {
    fallback_->all_to_all(in, out, stream);
    return;
  }
  issue("all_to_all over peer memory", stream, [&](cudaStream_t on) {
    const PartsToMove parts{.in = in.data, .out = out.data, .bytes = part_bytes};
    return move_parts(*way, resources_->view(), parts, on);
  });
}

Status PeerCommunicator::poll() const {
  RETURN_IF_ERROR(error_.get());
  return fallback_->poll();
}

void PeerCommunicator::stop_waiting() {
  resources_->stop_waiting();
  fallback_->stop_waiting();
}

void PeerCommunicator::abort(Status cause) {
  error_.set(cause);
  resources_->abort();
  fallback_->abort(std::move(cause));
}

}  // namespace llm_dist::comm
