#include "launch/gpu_names.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

namespace llm_dist::launch {
namespace {

using Names = std::vector<std::string>;

TEST(GpuNames, AreWhatThisProcessMaySee) {
  EXPECT_EQ(gpu_names(3, nullptr), (Names{"0", "1", "2"}));
  EXPECT_EQ(gpu_names(2, "5, GPU-0f"), (Names{"5", "GPU-0f"}));
  EXPECT_EQ(gpu_names(1, "5,99,6"), Names{"5"}) << "CUDA stops at the first that it does not know";
  EXPECT_EQ(gpu_names(0, ""), Names{});
}

TEST(FindGpus, AsksAProcessOfItsOwn) {
  ASSERT_EQ(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
  const pid_t here = getpid();
  auto two = [here]() -> Result<int> { return getpid() == here ? 0 : 2; };
  EXPECT_EQ(find_gpus(two, std::chrono::seconds(60)).value(), (Names{"0", "1"}));
  auto none = []() -> Result<int> { return failed_precondition("no driver"); };
  EXPECT_EQ(find_gpus(none, std::chrono::seconds(60)).value(), Names{});
}

TEST(FindGpus, ADriverThatHangsOrCrashesIsAnError) {
  auto hangs = []() -> Result<int> {
    while (true) pause();
  };
  EXPECT_EQ(find_gpus(hangs, std::chrono::milliseconds(50)).status().code(), StatusCode::kUnavailable);
  auto crashes = []() -> Result<int> {
    raise(SIGKILL);
    return 1;
  };
  EXPECT_EQ(find_gpus(crashes, std::chrono::seconds(60)).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace llm_dist::launch
