#include "tests/comm/shared_gpu.h"

#include <cuda_runtime.h>

#include <atomic>

#include "comm/first_error.h"
#include "comm/p2p_groups.h"
#include "src/device/cpu/cpu_stream.h"
#include "tests/comm/shared_gpu_calls.h"

namespace llm_dist::comm {
namespace {

using shared_gpu::Board;
using shared_gpu::Call;
using shared_gpu::Kind;
using shared_gpu::Place;

constexpr double kMeetSeconds = 60;

Status cuda_status(cudaError_t error, const char* what) {
  return error == cudaSuccess ? ok_status()
                              : internal_error(format("{}: {}", what, cudaGetErrorString(error)));
}

class SharedGpuCommunicator : public Communicator {
 public:
  SharedGpuCommunicator(CommInfo info, int device_index)
      : info_(std::move(info)), device_index_(device_index) {}
  ~SharedGpuCommunicator() override {
    (void)cudaSetDevice(device_index_);
    if (info_.rank == 0) (void)cudaFree(place_.board);
    (void)cudaFreeHost(aborted_);
  }
  SharedGpuCommunicator(const SharedGpuCommunicator&) = delete;
  SharedGpuCommunicator& operator=(const SharedGpuCommunicator&) = delete;

  Status meet(Communicator& hosts) {
    RETURN_IF_ERROR(cuda_status(cudaSetDevice(device_index_), "cudaSetDevice"));
    void* board = nullptr;
    if (info_.rank == 0) {
      RETURN_IF_ERROR(cuda_status(cudaMalloc(&board, sizeof(Board)), "cudaMalloc"));
      RETURN_IF_ERROR(cuda_status(cudaMemset(board, 0, sizeof(Board)), "cudaMemset"));
      RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(nullptr), "clearing memory"));
    }
    auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(board));
    device::CpuStream stream({.name = "shared-gpu"});
    hosts.broadcast(Tensor::contiguous(&address, DType::kI64, {1}), 0, stream);
    RETURN_IF_ERROR(stream.synchronize(Deadline::after_seconds(kMeetSeconds)));
    void* word = nullptr;
    RETURN_IF_ERROR(
        cuda_status(cudaHostAlloc(&word, sizeof *aborted_, cudaHostAllocMapped), "a pinned word"));
    aborted_ = static_cast<uint32_t*>(word);
    *aborted_ = 0;
    place_ = {.board = reinterpret_cast<Board*>(static_cast<uintptr_t>(address)),
              .aborted = aborted_,
              .rank = info_.rank,
              .size = info_.size};
    return ok_status();
  }

  const CommInfo& info() const override { return info_; }
  void all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) override {
    issue({.kind = Kind::kAllReduce, .op = op, .count = data.numel()}, data, data, stream);
  }
  void all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) override {
    issue({.kind = Kind::kAllGather, .count = in.numel()}, in, out, stream);
  }
  void reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, device::Stream& stream) override {
    issue({.kind = Kind::kReduceScatter, .op = op, .count = out.numel()}, in, out, stream);
  }
  void broadcast(const Tensor& data, int root, device::Stream& stream) override {
    issue({.kind = Kind::kBroadcast, .root = root, .count = data.numel()}, data, data, stream);
  }
  void all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) override {
    issue({.kind = Kind::kAllToAll, .count = in.numel() / info_.size}, in, out, stream);
  }
  void send(const Tensor& data, int peer, device::Stream& stream) override {
    if (data.numel() == 0) return;
    launch(stream, [&](cudaStream_t on) { return shared_gpu::issue_send(place_, peer, bytes_of(data), on); });
  }
  void recv(const Tensor& data, int peer, device::Stream& stream) override {
    if (data.numel() == 0) return;
    launch(stream, [&](cudaStream_t on) {
      return shared_gpu::issue_receive(place_, peer, bytes_of(data), data.bytes(), on);
    });
  }
  Status poll() const override { return error_.get(); }
  void abort(Status cause) override {
    error_.set(std::move(cause));
    std::atomic_ref(*aborted_).store(1);
  }

 private:
  static std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data); }

  void issue(Call call, const Tensor& in, const Tensor& out, device::Stream& stream) {
    if (call.count == 0) return;
    call.dtype = in.dtype;
    call.in = bytes_of(in);
    call.out = bytes_of(out);
    launch(stream, [&](cudaStream_t on) { return shared_gpu::issue_call(place_, call, on); });
  }
  template <typename Issue>
  void launch(device::Stream& stream, Issue&& on_stream) {
    auto* on = static_cast<cudaStream_t>(stream.native());
    Status status = error_.get();
    if (status.ok()) status = stream.error();
    if (status.ok()) status = cuda_status(cudaSetDevice(device_index_), "cudaSetDevice");
    if (status.ok()) status = cuda_status(on_stream(on), "a call of ranks that share a GPU");
    if (!status.ok()) stream.fail(std::move(status));
  }

  CommInfo info_;
  int device_index_;
  Place place_;
  uint32_t* aborted_ = nullptr;
  FirstError error_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_shared_gpu_communicator(World& world,
                                                                   std::span<const int> world_ranks,
                                                                   const std::string& name,
                                                                   int device_index) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> hosts, world.make_communicator(world_ranks, name));
  if (world_ranks.size() == 1) return hosts;
  CommInfo info = hosts->info();
  info.backend = "shared-gpu";
  auto made = std::make_unique<SharedGpuCommunicator>(std::move(info), device_index);
  RETURN_IF_ERROR(made->meet(*hosts));
  return std::unique_ptr<Communicator>(std::move(made));
}

Result<std::unique_ptr<Communicator>> make_p2p_on_shared_gpu(World& world,
                                                             std::span<const int> world_ranks,
                                                             const std::string& name,
                                                             int device_index,
                                                             const PeerLimits& limits) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> fallback,
                   make_shared_gpu_communicator(world, world_ranks, name, device_index));
  return put_peer_memory_before(std::move(fallback), world, world_ranks, device_index, limits);
}

}  // namespace llm_dist::comm
