// What a device's stream and threads of its host tell each other.
#pragma once

#include <cstdint>
#include <functional>

#include "src/base/clock.h"
#include "src/device/stream.h"

namespace llm_dist::comm {

class HostGate {
 public:
  virtual ~HostGate() = default;
  // Not where `stream` is captured: nobody counts the replays of a graph.
  virtual bool takes(device::Stream& stream) const = 0;
  // `call` runs on some thread of the host when `stream` gets here, which goes on meanwhile; calls run in the
  // order in which they were issued. It neither waits nor issues to a device. Not at all when the stream
  // fails before.
  virtual void tell_host(device::Stream& stream, std::function<void()> call) = 0;
  // Waits until the calls have run, of streams that have come to all of theirs; no longer than `deadline`.
  virtual void finish(Deadline deadline) = 0;
  // `stream` goes on, with nothing of it on the device meanwhile, when open() has been called with `number`
  // or more.
  virtual void wait(device::Stream& stream, uint64_t number) = 0;
  virtual void open(uint64_t number) = 0;  // any thread

  static constexpr uint64_t kBeyondAll = INT64_MAX;
};

}  // namespace llm_dist::comm
