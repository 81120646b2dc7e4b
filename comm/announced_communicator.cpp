#include "comm/announced_communicator.h"

#include <mutex>
#include <utility>

namespace llm_dist::comm {
namespace {

constexpr double kFinishSeconds = 1;

}  // namespace

// Announcements of one rank's messages, and the thread that brings them.
class AnnouncedCommunicator::Announcements {
 public:
  explicit Announcements(std::unique_ptr<Communicator> hosts) : hosts_(std::move(hosts)) {}

  // Most groups have messages one way, and some none: no thread without need.
  device::CpuStream& stream() {
    if (stream_ == nullptr)
      stream_ = std::make_unique<device::CpuStream>(device::CpuStreamOptions{.name = "announce"});
    return *stream_;
  }
  // Any thread, after stream() has been called; nothing once this is closed.
  void send(int peer) {
    std::lock_guard lock(mutex_);
    if (hosts_ != nullptr) hosts_->send(word(), peer, *stream_);
  }
  void receive(int peer) { hosts_->recv(word(), peer, stream()); }
  Status poll() const { return hosts_->poll(); }
  void abort(Status cause) { hosts_->abort(std::move(cause)); }
  void close() {
    std::unique_ptr<Communicator> hosts;
    std::unique_ptr<device::CpuStream> stream;  // ends first, and may wait for what is under way
    std::lock_guard lock(mutex_);
    hosts = std::move(hosts_);
    stream = std::move(stream_);
  }

 private:
  Tensor word() { return Tensor::contiguous(&said_, DType::kI32, {1}); }

  std::mutex mutex_;  // of a send and the end
  std::unique_ptr<Communicator> hosts_;
  std::unique_ptr<device::CpuStream> stream_;
  int32_t said_ = 0;  // nobody reads it: that it comes is the word
};

AnnouncedCommunicator::AnnouncedCommunicator(std::unique_ptr<Communicator> messages,
                                             std::array<std::unique_ptr<Communicator>, 2> hosts,
                                             std::unique_ptr<HostGate> gate)
    : messages_(std::move(messages)), gate_(std::move(gate)) {
  CHECK_EQ(messages_->info().size, 2);
  for (size_t sender = 0; sender < hosts.size(); ++sender)
    announcements_[sender] = std::make_shared<Announcements>(std::move(hosts[sender]));
}

// What was sent is announced, too, before this ends: a peer waits for it. Of a stream that has failed a call
// of the host's may still come.
AnnouncedCommunicator::~AnnouncedCommunicator() {
  if (!aborted_) gate_->finish(Deadline::after_seconds(kFinishSeconds));
  for (const std::shared_ptr<Announcements>& each : announcements_) each->close();
}

void AnnouncedCommunicator::send(const Tensor& data, int peer, device::Stream& stream) {
  if (data.numel() > 0 && gate_->takes(stream)) {
    const std::shared_ptr<Announcements>& mine = announcements_of(info().rank);
    (void)mine->stream();
    gate_->tell_host(stream, [mine, peer] { mine->send(peer); });
  }
  messages_->send(data, peer, stream);
}

void AnnouncedCommunicator::recv(const Tensor& data, int peer, device::Stream& stream) {
  if (data.numel() > 0 && gate_->takes(stream)) {
    const std::shared_ptr<Announcements>& theirs = announcements_of(peer);
    const uint64_t number = ++num_received_;
    theirs->receive(peer);
    theirs->stream().enqueue([gate = gate_.get(), number] { gate->open(number); });
    gate_->wait(stream, number);
  }
  messages_->recv(data, peer, stream);
}

Status AnnouncedCommunicator::poll() const {
  RETURN_IF_ERROR(messages_->poll());
  for (const std::shared_ptr<Announcements>& each : announcements_) RETURN_IF_ERROR(each->poll());
  return ok_status();
}

void AnnouncedCommunicator::stop_waiting() { gate_->open(HostGate::kBeyondAll); }

void AnnouncedCommunicator::abort(Status cause) {
  aborted_ = true;
  stop_waiting();
  for (const std::shared_ptr<Announcements>& each : announcements_) each->abort(cause);
  messages_->abort(std::move(cause));
}

}  // namespace llm_dist::comm
