// A communicator whose calls do nothing: tests derive from it what answers or notes some of them.
#pragma once

#include <utility>

#include "comm/communicator.h"

namespace llm_dist::comm {

class SilentCommunicator : public Communicator {
 public:
  explicit SilentCommunicator(CommInfo info) : info_(std::move(info)) {}

  const CommInfo& info() const override { return info_; }
  void all_reduce(const Tensor&, ReduceOp, device::Stream&) override {}
  void all_gather(const Tensor&, const Tensor&, device::Stream&) override {}
  void reduce_scatter(const Tensor&, const Tensor&, ReduceOp, device::Stream&) override {}
  void broadcast(const Tensor&, int, device::Stream&) override {}
  void send(const Tensor&, int, device::Stream&) override {}
  void recv(const Tensor&, int, device::Stream&) override {}
  void all_to_all(const Tensor&, const Tensor&, device::Stream&) override {}
  Status poll() const override { return ok_status(); }
  void abort(Status) override {}

 private:
  CommInfo info_;
};

}  // namespace llm_dist::comm
