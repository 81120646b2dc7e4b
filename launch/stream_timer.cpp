#include "launch/stream_timer.h"

#include <algorithm>
#include <cmath>

namespace llm_dist::launch {

Result<StreamTimer> StreamTimer::create(device::Backend& backend, device::Stream& stream, int max_marks) {
  StreamTimer timer;
  timer.backend_ = &backend;
  timer.stream_ = &stream;
  ASSIGN_OR_RETURN(
      timer.marks_,
      backend.allocate(max_marks * static_cast<int64_t>(sizeof(int64_t)), device::MemoryKind::kPinned));
  return timer;
}

Result<StreamTimer> StreamTimer::create(device::Backend& backend, const std::string& name, int max_marks) {
  std::unique_ptr<device::Stream> stream = backend.make_stream(name);
  ASSIGN_OR_RETURN(StreamTimer timer, create(backend, *stream, max_marks));
  timer.own_stream_ = std::move(stream);
  return timer;
}

Result<std::vector<double>> StreamTimer::times_of(int count, const std::function<void()>& issue) {
  CHECK((count + 1) * static_cast<int64_t>(sizeof(int64_t)) <= marks_.bytes(), "{} marks", count + 1);
  auto* marks = reinterpret_cast<int64_t*>(marks_.data());
  stream_->write_timestamp(marks);
  for (int i = 1; i <= count; ++i) {
    issue();
    stream_->write_timestamp(marks + i);
  }
  RETURN_IF_ERROR(synchronize());
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(count));
  for (int i = 1; i <= count; ++i) seconds.push_back(static_cast<double>(marks[i] - marks[i - 1]) * 1e-9);
  return seconds;
}

Result<double> StreamTimer::mean_of(int repeats, const std::function<void()>& issue) {
  issue();
  ASSIGN_OR_RETURN(std::vector<double> seconds, times_of(1, [&] {
                     for (int i = 0; i < repeats; ++i) issue();
                   }));
  return seconds.front() / repeats;
}

Result<std::unique_ptr<device::Graph>> StreamTimer::capture(int calls, const std::function<void()>& issue) {
  backend_->begin_capture(*stream_);
  for (int i = 0; i < calls; ++i) issue();
  return backend_->end_capture(*stream_);
}

Result<double> StreamTimer::mean_in_graph(int calls, int replays, const std::function<void()>& issue) {
  ASSIGN_OR_RETURN(std::unique_ptr<device::Graph> graph, capture(calls, issue));
  ASSIGN_OR_RETURN(double seconds, mean_of(replays, [&] { graph->launch(*stream_); }));
  return seconds / calls;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t upper = values.size() / 2;
  const size_t lower = (values.size() - 1) / 2;
  return (values[lower] + values[upper]) / 2;
}

double quantile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  return values[std::min(values.size() - 1, rank == 0 ? 0 : rank - 1)];
}

}  // namespace llm_dist::launch
