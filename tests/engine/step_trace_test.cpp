// StepTrace: a device that lags behind what was issued to it.
#include "src/engine/step_trace.h"

#include <gtest/gtest.h>

#include <future>

#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::engine {
namespace {

TEST(StepTrace, AStepBeyondTheCapacityLeavesTheLastOneAsItIs) {
  std::promise<void> all_issued;
  std::shared_future<void> gate = all_issued.get_future().share();
  std::atomic<int> num_tasks{0};
  auto backend = device::make_cpu_backend({.threads = 1, .before_task = [&](const std::string&, uint64_t) {
                                             gate.wait();
                                             ++num_tasks;
                                           }});
  auto trace = StepTrace::create(*backend, 1).value();
  auto stream = backend->make_stream("compute");
  for (uint64_t step : {1, 2}) {
    trace->begin(step, 8, false, *stream);
    trace->end(*stream);
  }
  all_issued.set_value();
  ASSERT_TRUE(stream->synchronize(Deadline::after_seconds(20)).ok());
  EXPECT_EQ(num_tasks.load(), 2) << "a timestamp was written twice";
  std::vector<TracedStep> steps = trace->steps();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 1u);
  EXPECT_LE(steps[0].begin_ns, steps[0].end_ns);
}

}  // namespace
}  // namespace llm_dist::engine
