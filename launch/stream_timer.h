// StreamTimer: how long things take on a device, by the device's own clock.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "src/device/backend.h"

namespace llm_dist::launch {

// What a measurement may take at most before it counts as stuck.
inline constexpr double kMeasureSeconds = 300;

class StreamTimer {
 public:
  // On a stream of its own. `max_marks`: of times_of.
  static Result<StreamTimer> create(device::Backend& backend, const std::string& name, int max_marks = 2);
  // On `stream`, which outlives it.
  static Result<StreamTimer> create(device::Backend& backend, device::Stream& stream, int max_marks = 2);

  device::Backend& backend() { return *backend_; }
  device::Stream& stream() { return *stream_; }
  Status synchronize() { return stream_->synchronize(Deadline::after_seconds(kMeasureSeconds)); }

  // Seconds of each of `count` calls of issue(), a timestamp between one and the next; max_marks − 1 at most.
  Result<std::vector<double>> times_of(int count, const std::function<void()>& issue);
  // Mean seconds of a call of issue(), `repeats` of them back to back, behind one that does not count.
  Result<double> mean_of(int repeats, const std::function<void()>& issue);
  // As mean_of, of what a replay of a graph of `calls` calls takes for each: without the host's part, as in
  // the steps of a device that prefers graphs. issue() must have run before.
  Result<double> mean_in_graph(int calls, int replays, const std::function<void()>& issue);
  Result<std::unique_ptr<device::Graph>> capture(int calls, const std::function<void()>& issue);

 private:
  device::Backend* backend_ = nullptr;
  device::Buffer marks_;                        // pinned i64 [max_marks]
  std::unique_ptr<device::Stream> own_stream_;  // after the marks: it is idle before they go
  device::Stream* stream_ = nullptr;
};

// Of an even number the mean of the two in the middle; 0 of none.
double median(std::vector<double> values);
// The value that a `fraction` of the values does not exceed; 0 of none.
double quantile(std::vector<double> values, double fraction);

}  // namespace llm_dist::launch
