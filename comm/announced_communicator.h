// Messages between two devices that are announced from host to host. A receive of NCCL's waits in a kernel,
// which holds room on the device that kernels with a block on each of its processors lack. Here the
// receiver's stream waits, with nothing on the device, for a word between hosts that the sender's stream has
// come to the message, and the receive follows. That takes the way between the hosts longer. NCCL's send is
// not held up by the word; that of a long message waits in its kernel for the receive.
//
// A message in a graph is not announced. So it is in a graph on both sides, or on neither.
#pragma once

#include <array>
#include <atomic>
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
  ~AnnouncedCommunicator() override;

  const CommInfo& info() const override { return messages_->info(); }
  void send(const Tensor& data, int peer, device::Stream& stream) override;
  void recv(const Tensor& data, int peer, device::Stream& stream) override;
  bool waits_on_device() const override { return false; }
  bool moves_by_kernels() const override { return messages_->moves_by_kernels(); }
  // Also the first error of an announcement.
  Status poll() const override;
  void stop_waiting() override;
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
  class Announcements;
  const std::shared_ptr<Announcements>& announcements_of(int sender) const {
    return announcements_[static_cast<size_t>(sender)];
  }

  std::unique_ptr<Communicator> messages_;
  std::unique_ptr<HostGate> gate_;
  // By who sends; shared with calls of the host's that a stream has still to make.
  std::array<std::shared_ptr<Announcements>, 2> announcements_;
  uint64_t num_received_ = 0;
  std::atomic<bool> aborted_{false};
};

}  // namespace llm_dist::comm
