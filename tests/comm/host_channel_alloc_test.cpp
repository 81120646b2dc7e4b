// The steady state of the host channel allocates nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/host/host_channel.h"
#include "comm/host/liveness.h"
#include "tests/base/allocation_count.h"
#include "tests/comm/host_test_world.h"

namespace llm_dist::comm {
namespace {

thread_local std::atomic<int64_t> allocations{0};

int run_steady_state(const HostWorld& world) {
  auto channel = make_host_channel({.world = world, .reserved_message_bytes = 4096});
  auto liveness = Liveness::start({.world = world});
  if (!channel.ok() || !liveness.ok()) return 1;
  std::vector<std::byte> message(4096);
  count_allocations_in(allocations);
  int64_t before = allocations;
  for (int step = 0; step < 1000; ++step) {
    auto deadline = Deadline::after(std::chrono::seconds(20));
    (*liveness)->set_phase(step % 2 == 0 ? "prefill" : "decode");
    if (world.rank == 0) {
      if (!(*channel)->publish(message, deadline).ok()) return 2;
      std::optional<HostReport> report;
      while (!report && !deadline.expired()) {
        auto taken = (*channel)->try_take_report();
        if (!taken.ok()) return 3;
        report = *taken;
        std::this_thread::yield();
      }
    } else {
      auto received = (*channel)->receive(deadline);
      if (!received.ok() || received->size() != message.size()) return 4;
      if (!(*channel)->report(received->first(64)).ok()) return 5;
    }
  }
  int64_t made = allocations - before;
  (*liveness)->leave();
  return made == 0 ? 0 : 6;
}

TEST(HostChannelAllocations, ThousandStepsMakeNone) {
  for (bool sockets : {false, true})
    EXPECT_EQ(run_ranks({.size = 2, .processes = false, .sockets = sockets}, run_steady_state),
              (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace llm_dist::comm
