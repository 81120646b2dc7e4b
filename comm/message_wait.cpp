#include "comm/message_wait.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

namespace llm_dist::comm {
namespace {

// A peer that stays away for longer is computing: polling then takes its time.
constexpr Duration kYieldFor = std::chrono::milliseconds(1);
// Then a sleep is a share of the wait so far, and makes it longer by no more: whoever waits for a whole step
// leaves the core to those who compute it.
constexpr int kSleepShare = 16;
// A decode comes through the stages in some milliseconds and is to lose little time in each. Once a sleep is
// shorter than this share of the wait, as in a prompt's steps, it grows again.
constexpr int kLongSleepShare = 64;
constexpr Duration kShortWaitSleep = std::chrono::microseconds(200);
constexpr int kPollsBetweenNotices = 64;
// Longer than peers on one core take between messages, shorter than a time slice (about 3 ms).
constexpr Duration kSlice = std::chrono::microseconds(800);
constexpr Duration kSharedFor = std::chrono::milliseconds(100);
constexpr unsigned long kTimerSlackNs = 1000;  // the default, 50 µs, is longer than the shortest sleep

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

Duration Backoff::sleep_after(Duration waited, Duration longest) {
  const Duration sleep =
      std::max<Duration>(std::min<Duration>(waited / kSleepShare, kShortWaitSleep), waited / kLongSleepShare);
  return std::clamp(sleep, kShortestSleep, longest);
}

void Backoff::pause(Duration waited) {
  TimePoint before = Clock::now();
  if (waited < kYieldFor && before >= shared_until_) {
    sched_yield();
    TimePoint after = Clock::now();
    if (after - before > kSlice) shared_until_ = after + kSharedFor;
    return;
  }
  if (!wakes_on_time_) {
    prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
    wakes_on_time_ = true;
  }
  std::this_thread::sleep_for(sleep_after(waited, longest_sleep_));
}

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
    wait.backoff.pause(now - begin);
  }
  channel.cancel();
  return failure;
}

}  // namespace llm_dist::comm
