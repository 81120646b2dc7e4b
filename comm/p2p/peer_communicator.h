// PeerCommunicator: sums of floats by kernels of our own over the memory of GPUs of one host, as far as they
// are faster; everything else over another communicator of the same ranks.
#pragma once

#include <atomic>

#include "comm/first_error.h"
#include "comm/p2p/peer_memory.h"

namespace llm_dist::comm {

// As over NCCL, an operation under way has no deadline and does not see a peer's abort: whoever waits for its
// stream has the one, hears of the other, and aborts.
class PeerCommunicator : public Communicator {
 public:
  PeerCommunicator(std::unique_ptr<PeerResources> resources, std::unique_ptr<Communicator> fallback);

  const CommInfo& info() const override { return info_; }
  void all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) override;
  void all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) override;
  void reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, device::Stream& stream) override;
  void broadcast(const Tensor& data, int root, device::Stream& stream) override;
  void send(const Tensor& data, int peer, device::Stream& stream) override;
  void recv(const Tensor& data, int peer, device::Stream& stream) override;
  void all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) override;
  Status poll() const override;
  void abort(Status cause) override;

 private:
  void sum(PeerWay way, const Tensor& data, device::Stream& stream);

  CommInfo info_;
  std::unique_ptr<Communicator> fallback_;
  std::unique_ptr<PeerResources> resources_;  // the first to go: its end is the ranks' farewell
  FirstError error_;
};

}  // namespace llm_dist::comm
