// NcclCommunicator: collectives between GPUs. All connections are made at the start, by a thread that nobody
// has to wait for beyond a deadline; what is called later only issues. The library's own non-blocking mode
// starts a thread in every call, which costs some 200 µs where a collective takes ten.
#pragma once

#include <nccl.h>

#include <atomic>
#include <memory>

#include "comm/communicator.h"
#include "comm/first_error.h"
#include "comm/nccl/nccl_module.h"

namespace llm_dist::comm {

class NcclCommunicator : public Communicator {
 public:
  static Result<std::unique_ptr<Communicator>> connect(const NcclGroup& group, Deadline deadline);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const CommInfo& info() const override { return info_; }
  void all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) override;
  void all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) override;
  void reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, device::Stream& stream) override;
  void broadcast(const Tensor& data, int root, device::Stream& stream) override;
  void send(const Tensor& data, int peer, device::Stream& stream) override;
  void recv(const Tensor& data, int peer, device::Stream& stream) override;
  void all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) override;
  bool waits_on_device() const override { return true; }
  bool moves_by_kernels() const override { return true; }
  std::span<std::byte> sum_memory() const override { return {sum_memory_, sum_bytes_}; }
  Status poll() const override;
  void abort(Status cause) override;

 private:
  NcclCommunicator(const NcclGroup& group) : info_(group.info), group_(group) {}
  // Runs call(cudaStream_t) on `stream`; an error fails the stream and ends the group.
  template <typename Call>
  void issue(device::Stream& stream, const char* what, Call&& call);

  CommInfo info_;
  NcclGroup group_;
  ncclComm_t comm_ = nullptr;
  std::byte* sum_memory_ = nullptr;
  size_t sum_bytes_ = 0;
  std::atomic<bool> aborted_{false};
  class Ending;
  std::atomic<std::shared_ptr<Ending>> ending_;
  mutable FirstError error_;
};

}  // namespace llm_dist::comm
