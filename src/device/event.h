// Event: a point of a stream that other streams and the host can wait for.
#pragma once

#include "src/base/clock.h"
#include "src/base/status.h"

namespace llm_dist::device {

// Waiting always means the latest record() that was issued before the wait; an event never recorded is
// complete.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool complete() const = 0;
  // Blocks the calling thread. An error of the stream that records the event comes back here.
  virtual Status wait(Deadline deadline) = 0;
};

}  // namespace llm_dist::device
