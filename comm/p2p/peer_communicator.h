// PeerCommunicator: sums of floats, with the norm behind them or without, gathers, all-to-alls and messages
// by kernels of our own over the memory of GPUs of one host, as far as the group's limits say; everything
// else over another communicator of the same ranks.
#pragma once

#include <optional>

#include "comm/first_error.h"
#include "comm/norm_reducer.h"
#include "comm/p2p/messages.h"
#include "comm/p2p/peer_memory.h"

namespace llm_dist::comm {

// As over NCCL, an operation under way has no deadline and does not see a peer's abort: whoever waits for its
// stream has the one, hears of the other, and aborts.
class PeerCommunicator : public Communicator, public NormReducer {
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
  bool waits_on_device() const override;
  bool moves_by_kernels() const override { return true; }
  Status poll() const override;
  void stop_waiting() override;
  void abort(Status cause) override;
  bool takes(int64_t rows, int64_t hidden, DType dtype) const override;
  void all_reduce_add_rms_norm(const SumAndNorm& call, device::Stream& stream) override;
  device::PeerTerms terms(int64_t rows, int64_t hidden, DType dtype) const override;
  bool takes_shares(int64_t rows, int64_t hidden, DType dtype) const override;
  Tensor shared_term(int rank, int64_t rows, int64_t hidden, DType dtype) const override;
  void hand_terms() override { hands_terms_ = true; }
  Tensor shared_out(int64_t rows, int64_t hidden, DType dtype) const override;
  device::HandedRows handed_rows(int64_t rows, int64_t hidden, DType dtype, bool codes) const override;
  void add_rms_norm_of_shares(const SharesAndNorm& call, device::Stream& stream) override;
  void add_shares(const Tensor& residual, device::Stream& stream) override;

 private:
  // Of a call with the norm behind it.
  bool goes_in_two_trips(int64_t rows, int64_t hidden, DType dtype) const;
  // At `offset` in a rank's memory.
  Tensor shared_rows(int rank, int64_t offset, int64_t rows, int64_t hidden, DType dtype) const;
  // Whether terms of so many rows of all ranks stand with the ranks whose rows they are.
  bool are_handed(int64_t rows, int64_t hidden, DType dtype) const;
  // Without a weight and out nothing is normed.
  void sum_shares(const SharesAndNorm& call, device::Stream& stream);
  // How ranks exchange parts of so many bytes; none: too large.
  std::optional<PeerWay> way_of_parts(int64_t part_bytes) const;
  // None: too large.
  std::optional<Message> message_of(const Tensor& data, int peer) const;
  // launch(stream) on this rank's GPU, unless the group or the stream has failed.
  template <typename Launch>
  void issue(const char* what, device::Stream& stream, Launch&& launch);

  CommInfo info_;
  std::unique_ptr<Communicator> fallback_;
  std::unique_ptr<PeerResources> resources_;  // the first to go: its end is the ranks' farewell
  bool hands_terms_ = false;
  FirstError error_;
};

}  // namespace llm_dist::comm
