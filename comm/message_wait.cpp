#include "comm/message_wait.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace llm_dist::comm {
namespace {

// A peer in step is here within microseconds, and yielding lets it run where cores are few. One that stays
// away for longer is computing: polling then takes its time.
constexpr Duration kYieldFor = std::chrono::milliseconds(1);
constexpr Duration kShortSleep = std::chrono::microseconds(20);
constexpr Duration kSleepShortFor = std::chrono::milliseconds(50);
constexpr Duration kLongSleep = std::chrono::microseconds(200);
constexpr int kPollsBetweenNotices = 64;

void back_off(Duration waited) {
  if (waited < kYieldFor) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(waited < kSleepShortFor ? kShortSleep : kLongSleep);
  }
}

Status no_word(MessageChannel& channel, const MessageWait& wait, std::string_view what) {
  std::vector<int> peers = channel.waiting_for();
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  std::string missing;
  for (int peer : peers)
    missing += format("{}{}", missing.empty() ? "" : ", ", wait.world_ranks[static_cast<size_t>(peer)]);
  return deadline_exceeded(format("{} in group {}: no word from rank {}", what, wait.group, missing));
}

}  // namespace

Status wait_for_messages(MessageChannel& channel,
                         const MessageWait& wait,
                         Deadline deadline,
                         std::string_view what) {
  TimePoint begin = Clock::now();
  Status failure;
  for (int polls = 1;; ++polls) {
    Result<bool> done = channel.progress();
    if (done.ok() && *done) return {};
    if (!done.ok()) failure = done.status().with_context(format("{} in group {}", what, wait.group));
    if (polls % kPollsBetweenNotices == 0) wait.notices.read_notices();
    if (wait.error.failed()) failure = wait.error.get();
    TimePoint now = Clock::now();
    if (failure.ok() && now >= deadline.when()) failure = no_word(channel, wait, what);
    if (!failure.ok()) break;
    back_off(now - begin);
  }
  channel.cancel();
  return failure;
}

}  // namespace llm_dist::comm
