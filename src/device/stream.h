// Stream: work in order, asynchronous to the thread that issues it, on every device: a CPU stream is a queue
// with a thread of its own, so code that forgets to wait fails on CPU already.
#pragma once

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/base/tensor.h"
#include "src/device/event.h"

namespace llm_dist::device {

// Errors are sticky: after the first one nothing issued later runs, and synchronize(), Event::wait() and
// error() return it. One thread issues at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device device() const = 0;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;
  // dst and src: contiguous, of the same number of bytes, each on this stream's device or in (pinned) host
  // memory.
  virtual void copy(const Tensor& dst, const Tensor& src) = 0;
  virtual void fill_zero(const Tensor& dst) = 0;
  // Writes the time (device clock, nanoseconds; on CPU that of now_ns()) at which the stream gets here, to
  // pinned memory.
  virtual void write_timestamp(int64_t* pinned_ns) = 0;
  virtual Status synchronize(Deadline deadline) = 0;
  virtual Status error() const = 0;
  // error(), after a look at the device, which may have failed since anything was issued. Does not wait.
  virtual Status poll() { return error(); }
  // Poisons the stream: the error that everything waiting on it sees. The first one stays.
  virtual void fail(Status status) = 0;
  // The backend's own handle (cudaStream_t), for work to be issued on it now; null on CPU.
  virtual void* native() = 0;
};

}  // namespace llm_dist::device
