// Messages between two devices that are announced from host to host. A receive of NCCL's waits in a kernel,
// which holds room on the device that kernels with a block on each of its processors lack. Here the
// receiver's stream waits, with nothing on the device, for a word between hosts that the sender's stream has
// come to the message, and the receive follows. That takes the way between the hosts longer.
#pragma once

#include <array>
#include <memory>

#include "comm/communicator.h"
#include "comm/host_gate.h"
#include "src/device/cpu/cpu_stream.h"

namespace llm_dist::comm {

class AnnouncedCommunicator : public Communicator {
 public:
  // messages: of two ranks. hosts: two communicators of their hosts; by [rank], the announcements of that
  // rank's messages go over it.
  AnnouncedCommunicator(std::unique_ptr<Communicator> messages,
                        std::array<std::unique_ptr<Communicator>, 2> hosts,
                        std::unique_ptr<HostGate> gate);

  const CommInfo& info() const override { return messages_->info(); }
  void send(const Tensor& data, int peer, device::Stream& stream) override;
  void recv(const Tensor& data, int peer, device::Stream& stream) override;
  bool waits_on_device() const override { return false; }
  // Also the first error of an announcement.
  Status poll() const override;
  void abort(Status cause) override;

  // Nothing is announced of these.
  void all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) override {
    messages_->all_reduce(data, op, stream);
  }
  void all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) override {
    messages_->all_gather(in, out, stream);
  }
  void reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, device::Stream& stream) override {
    messages_->reduce_scatter(in, out, op, stream);
  }
  void broadcast(const Tensor& data, int root, device::Stream& stream) override {
    messages_->broadcast(data, root, stream);
  }
  void all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) override {
    messages_->all_to_all(in, out, stream);
  }
  std::span<std::byte> sum_memory() const override { return messages_->sum_memory(); }

 private:
  // Announcements of one rank's messages, and the thread that brings them.
  struct Way;
  Way& way_of(int sender) { return *ways_[static_cast<size_t>(sender)]; }

  std::unique_ptr<Communicator> messages_;
  std::unique_ptr<HostGate> gate_;  // goes when the threads have gone
  std::array<std::shared_ptr<Way>, 2> ways_;
  uint64_t num_received_ = 0;
};

}  // namespace llm_dist::comm
