// SelfCommunicator: a group of one. Reductions and broadcasts leave the data as it is, gathers are copies.
#pragma once

#include "comm/communicator.h"
#include "comm/first_error.h"

namespace llm_dist::comm {

// Works on any device: its only work is Stream::copy.
class SelfCommunicator : public Communicator {
 public:
  explicit SelfCommunicator(std::string name) : info_{.backend = "self", .name = std::move(name)} {}
  const CommInfo& info() const override { return info_; }

  void all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) override;
  void all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) override;
  void reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, device::Stream& stream) override;
  void broadcast(const Tensor& data, int root, device::Stream& stream) override;
  // A group of one has no peer: both are bugs of the caller.
  void send(const Tensor& data, int peer, device::Stream& stream) override;
  void recv(const Tensor& data, int peer, device::Stream& stream) override;
  void all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) override;
  Status poll() const override { return error_.get(); }
  void abort(Status cause) override { error_.set(std::move(cause)); }

 private:
  void copy_unless_same(const Tensor& in, const Tensor& out, device::Stream& stream);
  bool refused(device::Stream& stream) const;

  CommInfo info_;
  FirstError error_;
};

}  // namespace llm_dist::comm
