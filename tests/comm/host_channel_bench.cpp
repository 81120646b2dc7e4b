// host_channel_bench [sockets]: time from publish to receive of a 200-byte message, one way, with 1 to 3
// readers in processes of their own. Each message waits for the report of the last reader, so that every one
// starts with the readers asleep or spinning, as between the steps of an engine.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "comm/host/host_channel.h"
#include "tests/comm/host_test_world.h"

namespace llm_dist::comm {
namespace {

constexpr int kMessages = 5000;

int read_messages(HostChannel& channel) {
  while (true) {
    auto message = channel.receive(Deadline::after_seconds(20));
    int64_t received_ns = now_ns();
    if (!message.ok()) return message.status().code() == StatusCode::kUnavailable ? 0 : 1;
    int64_t sent_ns = 0;
    std::memcpy(&sent_ns, message->data(), sizeof(sent_ns));
    int64_t latency_ns = received_ns - sent_ns;
    if (!channel.report(std::as_bytes(std::span(&latency_ns, 1))).ok()) return 1;
  }
}

int publish_messages(HostChannel& channel, int readers) {
  std::vector<double> latencies_us;
  std::vector<double> publish_us;
  std::vector<std::byte> message(200);
  for (int i = 0; i < kMessages; ++i) {
    int64_t begin_ns = now_ns();
    std::memcpy(message.data(), &begin_ns, sizeof(begin_ns));
    if (!channel.publish(message, Deadline::after_seconds(20)).ok()) return 1;
    publish_us.push_back(static_cast<double>(now_ns() - begin_ns) / 1e3);
    for (int reports = 0; reports < readers;) {
      auto report = channel.try_take_report();
      if (!report.ok()) return 1;
      if (!report->has_value()) {
        timespec nap{.tv_sec = 0, .tv_nsec = 20'000};
        ::nanosleep(&nap, nullptr);
        continue;
      }
      int64_t latency_ns = 0;
      std::memcpy(&latency_ns, (*report)->bytes.data(), sizeof(latency_ns));
      latencies_us.push_back(static_cast<double>(latency_ns) / 1e3);
      ++reports;
    }
  }
  std::sort(latencies_us.begin(), latencies_us.end());
  std::sort(publish_us.begin(), publish_us.end());
  auto at = [](const std::vector<double>& sorted, double part) {
    return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
  };
  std::printf(
      "%d readers: publish to receive p50 %.1f us, p90 %.1f us, p99 %.1f us; publish call p50 %.1f us\n",
      readers,
      at(latencies_us, 0.5),
      at(latencies_us, 0.9),
      at(latencies_us, 0.99),
      at(publish_us, 0.5));
  std::fflush(stdout);
  return 0;
}

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) {
  using namespace llm_dist::comm;
  bool sockets = argc > 1 && std::strcmp(argv[1], "sockets") == 0;
  int worst = 0;
  for (int readers = 1; readers <= 3; ++readers) {
    auto codes = run_ranks({.size = readers + 1, .sockets = sockets}, [&](const HostWorld& world) {
      auto channel = make_host_channel({.world = world});
      if (!channel.ok()) return 1;
      return world.rank == 0 ? publish_messages(**channel, readers) : read_messages(**channel);
    });
    for (int code : codes) worst = std::max(worst, code);
  }
  return worst;
}
