#include "comm/announced_communicator.h"

#include <optional>
#include <utility>

namespace llm_dist::comm {

struct AnnouncedCommunicator::Way {
  explicit Way(std::unique_ptr<Communicator> over) : hosts(std::move(over)) {}
  Tensor word() { return Tensor::contiguous(&said, DType::kI32, {1}); }
  // Most groups have messages one way, and some none: no thread without need.
  device::CpuStream& stream() {
    if (!stream_) stream_.emplace(device::CpuStreamOptions{.name = "announce"});
    return *stream_;
  }

  std::unique_ptr<Communicator> hosts;
  int32_t said = 0;  // nobody reads it: that it comes is the word

 private:
  std::optional<device::CpuStream> stream_;  // the first to go
};

AnnouncedCommunicator::AnnouncedCommunicator(std::unique_ptr<Communicator> messages,
                                             std::array<std::unique_ptr<Communicator>, 2> hosts,
                                             std::unique_ptr<HostGate> gate)
    : messages_(std::move(messages)), gate_(std::move(gate)) {
  CHECK_EQ(messages_->info().size, 2);
  for (size_t sender = 0; sender < ways_.size(); ++sender)
    ways_[sender] = std::make_shared<Way>(std::move(hosts[sender]));
}

void AnnouncedCommunicator::send(const Tensor& data, int peer, device::Stream& stream) {
  if (data.numel() > 0) {
    const std::shared_ptr<Way>& way = ways_[static_cast<size_t>(info().rank)];
    device::CpuStream& announcing = way->stream();
    // The stream may outlive this communicator, but not use it.
    gate_->tell_host(stream, [way, peer, &announcing] { way->hosts->send(way->word(), peer, announcing); });
  }
  messages_->send(data, peer, stream);
}

void AnnouncedCommunicator::recv(const Tensor& data, int peer, device::Stream& stream) {
  if (data.numel() > 0) {
    Way& way = way_of(peer);
    const uint64_t number = ++num_received_;
    way.hosts->recv(way.word(), peer, way.stream());
    way.stream().enqueue([gate = gate_.get(), number] { gate->open(number); });
    gate_->wait(stream, number);
  }
  messages_->recv(data, peer, stream);
}

Status AnnouncedCommunicator::poll() const {
  RETURN_IF_ERROR(messages_->poll());
  for (const std::shared_ptr<Way>& way : ways_) RETURN_IF_ERROR(way->hosts->poll());
  return ok_status();
}

// First the gate, so that what waits behind it is there to be ended.
void AnnouncedCommunicator::abort(Status cause) {
  gate_->open(HostGate::kBeyondAll);
  for (const std::shared_ptr<Way>& way : ways_) way->hosts->abort(cause);
  messages_->abort(std::move(cause));
}

}  // namespace llm_dist::comm
