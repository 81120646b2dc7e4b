// A communicator that hands every call to another: tests derive from it what notes or changes some of them.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "comm/communicator.h"

namespace llm_dist::comm {

class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  const CommInfo& info() const override { return inner_->info(); }
  void all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) override {
    inner_->all_reduce(data, op, stream);
  }
  void all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) override {
    inner_->all_gather(in, out, stream);
  }
  void reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, device::Stream& stream) override {
    inner_->reduce_scatter(in, out, op, stream);
  }
  void broadcast(const Tensor& data, int root, device::Stream& stream) override {
    inner_->broadcast(data, root, stream);
  }
  void send(const Tensor& data, int peer, device::Stream& stream) override {
    inner_->send(data, peer, stream);
  }
  void recv(const Tensor& data, int peer, device::Stream& stream) override {
    inner_->recv(data, peer, stream);
  }
  void all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) override {
    inner_->all_to_all(in, out, stream);
  }
  std::span<std::byte> sum_memory() const override { return inner_->sum_memory(); }
  bool waits_on_device() const override { return inner_->waits_on_device(); }
  bool moves_by_kernels() const override { return inner_->moves_by_kernels(); }
  Status poll() const override { return inner_->poll(); }
  void stop_waiting() override { inner_->stop_waiting(); }
  void abort(Status cause) override { inner_->abort(std::move(cause)); }

 private:
  std::unique_ptr<Communicator> inner_;
};

}  // namespace llm_dist::comm
