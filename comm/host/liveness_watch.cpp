#include "comm/host/liveness_watch.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "comm/host/service_thread.h"
#include "src/base/check.h"
#include "src/base/format.h"

namespace llm_dist::comm {
namespace {

constexpr auto kGoneCause = "the process ended without a goodbye (killed or crashed)";

std::string silence(TimePoint heard, TimePoint now) {
  return format("no heartbeat for {} s", std::round(10 * seconds_between(heard, now)) / 10);
}

std::string cause_on_this_node(const WatchedRank& rank, TimePoint now) {
  std::string text = silence(rank.heard, now);
  switch (rank.process_watch.state()) {
    case ProcessState::kStopped: return text + ": its process is stopped (SIGSTOP or a debugger)";
    case ProcessState::kRunning: return text + ": its process is there, but gets no processor time";
    default: return text;
  }
}

}  // namespace

LivenessWatch::LivenessWatch(LivenessOptions options, NodeMemory memory, std::vector<WatchedRank> ranks)
    : options_(std::move(options)),
      memory_(std::move(memory)),
      board_(memory_.segment.data()),
      ranks_(std::move(ranks)),
      tick_(options_.interval / 4),
      next_beat_(Clock::now()),
      news_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (auto& rank : ranks_) rank.heard = Clock::now();
  thread_ = start_service_thread("liveness", [this] { run(); });
}

LivenessWatch::~LivenessWatch() { stop(RankState::kGone); }

BoardSlot& LivenessWatch::own_slot() {
  return board_.slot(*ranks_[static_cast<size_t>(options_.world.rank)].slot);
}

void LivenessWatch::stop(RankState state) {
  if (!thread_.joinable()) return;
  if (own_slot().state() == RankState::kRunning) own_slot().set_state(state);
  stop_.set(cancelled("leaving"));
  if (thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

void LivenessWatch::leave() {
  if (own_slot().state() != RankState::kRunning) return;
  send_to_other_nodes({.kind = LivenessFrame::Kind::kGoodbye});
  stop(RankState::kLeft);
}

void LivenessWatch::set_devices(std::vector<std::string> devices) {
  CHECK_EQ(devices.size(), ranks_.size());
  std::lock_guard lock(devices_mutex_);
  devices_ = std::move(devices);
}

void LivenessWatch::set_phase(std::string_view phase) {
  PhaseText text;
  text.assign(phase);
  std::lock_guard lock(phase_mutex_);
  own_slot().set_phase(text);
}

void LivenessWatch::announce_failure(const FailureCause& cause) {
  if (!own_slot().announcement().try_set(cause)) return;
  send_to_other_nodes(
      {.kind = LivenessFrame::Kind::kAnnouncement, .verdict = {.phase = own_slot().phase(), .cause = cause}});
  ::eventfd_write(news_.get(), 1);
}

void LivenessWatch::run() {
  TimePoint last_look = Clock::now();
  while (!stop_.is_set()) {
    TimePoint now = Clock::now();
    // This process itself was stopped or starved: that nobody was heard meanwhile says nothing about them.
    if (now - last_look > 2 * options_.interval)
      for (auto& rank : ranks_) rank.heard = now;
    last_look = now;
    beat_if_due(now);
    look_at_board(now);
    for (auto& rank : ranks_) {
      look_at_process(rank, now);
      listen_to(rank, now);
    }
    judge_silence(now);
    conclude(now);
    wait_for_news(now);
  }
}

void LivenessWatch::beat_if_due(TimePoint now) {
  PhaseText phase = own_slot().phase();
  bool due = now >= next_beat_;
  // A new phase goes out at the next look: it is what a diagnosis on another node will name.
  if (!due && phase.view() == sent_phase_.view()) return;
  if (due) next_beat_ = now + options_.interval;
  sent_phase_ = phase;
  own_slot().beat();
  send_to_other_nodes({.kind = LivenessFrame::Kind::kBeat, .verdict = {.phase = phase}});
}

void LivenessWatch::send_to_other_nodes(const LivenessFrame& frame) {
  auto bytes = std::as_bytes(std::span(&frame, 1));
  std::lock_guard lock(send_mutex_);
  for (auto& rank : ranks_) {
    if (!rank.socket.valid() || rank.cannot_send) continue;
    IoResult sent = write_some(rank.socket, bytes);
    // A full socket takes no frame and may take the next one; half a frame spoils all that follow.
    bool spoiled = sent.state == IoState::kProgress && sent.bytes < bytes.size();
    rank.cannot_send = spoiled || sent.state == IoState::kClosed;
  }
}

void LivenessWatch::look_at_board(TimePoint now) {
  for (auto& rank : ranks_)
    if (rank.slot) look_at_slot(rank, now);
}

void LivenessWatch::look_at_slot(WatchedRank& rank, TimePoint now) {
  BoardSlot& slot = board_.slot(*rank.slot);
  // The state first: what a rank stored before it left is then visible.
  RankState state = slot.state();
  uint64_t beats = slot.beats();
  if (beats != rank.beats || is_self(rank)) rank.heard = now;
  rank.beats = beats;
  rank.phase = slot.phase();
  if (auto cause = slot.announcement().get()) accuse(rank, Sign::kAnnounced, *cause, now);
  if (state == RankState::kLeft) rank.left = true;
  if (state == RankState::kGone) accuse_as_gone(rank, kGoneCause, now);
}

void LivenessWatch::look_at_process(WatchedRank& rank, TimePoint now) {
  if (!rank.slot || is_self(rank) || !may_fail(rank)) return;
  int pidfd = rank.process_watch.pollable_fd();
  bool gone = false;
  if (pidfd >= 0) {
    pollfd entry{.fd = pidfd, .events = POLLIN};
    gone = ::poll(&entry, 1, 0) == 1;
  } else {
    gone = rank.process_watch.state() == ProcessState::kGone;
  }
  if (!gone) return;
  look_at_slot(rank, now);  // it may have said something between the last look and its end
  accuse_as_gone(rank, kGoneCause, now);
}

void LivenessWatch::listen_to(WatchedRank& rank, TimePoint now) {
  while (rank.socket.valid() && !rank.socket_closed) {
    auto bytes = std::as_writable_bytes(std::span(&rank.incoming, 1));
    IoResult result = read_some(rank.socket, bytes.subspan(rank.filled));
    if (result.state == IoState::kWouldBlock) return;
    rank.filled += result.bytes;
    if (rank.filled == bytes.size()) take_frame(rank, now);
    if (result.state != IoState::kClosed) continue;
    rank.socket_closed = true;
    accuse_as_gone(rank, kGoneCause, now);
  }
}

void LivenessWatch::take_frame(WatchedRank& rank, TimePoint now) {
  const LivenessFrame& frame = rank.incoming;
  rank.filled = 0;
  rank.heard = now;
  switch (frame.kind) {
    case LivenessFrame::Kind::kBeat: rank.phase = frame.verdict.phase; break;
    case LivenessFrame::Kind::kGoodbye: rank.left = true; break;
    case LivenessFrame::Kind::kAnnouncement:
      rank.phase = frame.verdict.phase;
      accuse(rank, Sign::kAnnounced, frame.verdict.cause, now);
      break;
    case LivenessFrame::Kind::kVerdict: {
      bool names_ranks = std::max(frame.verdict.failed, frame.verdict.reporter) < options_.world.size &&
                         std::min(frame.verdict.failed, frame.verdict.reporter) >= 0;
      if (names_ranks) board_.verdict().try_set(frame.verdict);
      break;
    }
  }
}

void LivenessWatch::judge_silence(TimePoint now) {
  for (auto& rank : ranks_) {
    if (is_self(rank) || now - rank.heard <= options_.silence_limit || !may_fail(rank)) continue;
    if (rank.slot)
      accuse_as_gone(rank, cause_on_this_node(rank, now), now);
    else
      accuse_on_other_node(rank, now);
  }
}

// Whose beat is missed first is chance when a host goes down with all its ranks: the lowest of them is named,
// with the host.
void LivenessWatch::accuse_on_other_node(WatchedRank& silent, TimePoint now) {
  std::vector<WatchedRank*> of_its_host;
  for (auto& rank : ranks_)
    if (host_of(rank) == host_of(silent) && may_fail(rank)) of_its_host.push_back(&rank);
  TimePoint last_heard = silent.heard;
  for (const WatchedRank* rank : of_its_host) last_heard = std::max(last_heard, rank->heard);

  WatchedRank* named = &silent;
  std::string cause = silence(silent.heard, now);
  if (of_its_host.size() == 1) {
    cause += ": its host or the network is down, or its process is stopped";
  } else if (now - last_heard <= fresh()) {
    cause += ": its process is stopped or gets no processor time; other ranks of its host are heard";
  } else {
    named = of_its_host.front();
    cause =
        silence(last_heard, now) +
        format(" from any of the {} ranks of its host: the host or the network is down", of_its_host.size());
  }
  accuse_as_gone(*named, cause, now);
}

void LivenessWatch::accuse_as_gone(WatchedRank& rank, std::string_view cause, TimePoint now) {
  FailureCause gone;
  gone.text.assign(cause);
  accuse(rank, Sign::kGone, gone, now);
}

void LivenessWatch::accuse(WatchedRank& rank, Sign sign, const FailureCause& cause, TimePoint now) {
  if (!may_fail(rank)) return;
  rank.sign = sign;
  rank.sign_order = signs_++;
  rank.cause = cause;
  if (!first_sign_) first_sign_ = now;
}

void LivenessWatch::conclude(TimePoint now) {
  if (delivered_) return;
  if (auto verdict = board_.verdict().get()) return deliver(*verdict);
  if (!first_sign_ || now < *first_sign_ + options_.settle) return;
  Verdict own = judge(now);
  if (board_.verdict().try_set(own)) {
    send_to_other_nodes({.kind = LivenessFrame::Kind::kVerdict, .verdict = own});
    return deliver(own);
  }
  // Another rank's verdict comes first; unless that rank died while it wrote it.
  if (now > *first_sign_ + options_.settle + options_.interval) deliver(own);
}

Verdict LivenessWatch::judge(TimePoint now) const {
  const WatchedRank* failed = nullptr;
  const WatchedRank* reporter = nullptr;
  const WatchedRank* announcer = nullptr;
  for (const auto& rank : ranks_) {
    // A rank that has been silent for a while may be next to be found dead: it is not asked to report.
    const bool heard = !rank.left && now - rank.heard <= fresh();
    if (heard && may_fail(rank) && reporter == nullptr) reporter = &rank;
    if (heard && rank.sign == Sign::kAnnounced && announcer == nullptr) announcer = &rank;
    if (rank.sign == Sign::kNone) continue;
    auto weight = [](const WatchedRank& r) { return std::pair(r.sign != Sign::kGone, r.sign_order); };
    if (failed == nullptr || weight(rank) < weight(*failed)) failed = &rank;
  }
  CHECK(failed != nullptr, "a verdict without a failed rank");
  // What strikes all of them, all announce; they live long enough to say so, and all nodes name the same one.
  if (reporter == nullptr) reporter = announcer;
  return {.failed = failed->rank,
          .reporter = reporter != nullptr ? reporter->rank : options_.world.rank,
          .phase = failed->phase,
          .cause = failed->cause};
}

std::string LivenessWatch::device_of(const WatchedRank& rank) {
  std::lock_guard lock(devices_mutex_);
  return devices_.empty() ? "" : devices_[static_cast<size_t>(rank.rank)];
}

void LivenessWatch::deliver(const Verdict& verdict) {
  delivered_ = true;
  const WatchedRank& failed = ranks_[static_cast<size_t>(verdict.failed)];
  RankFailure failure{.rank = failed.rank,
                      .host = host_of(failed),
                      .pid = failed.process.pid,
                      .device = device_of(failed),
                      .phase = std::string(verdict.phase.view()),
                      .cause = std::string(verdict.cause.text.view()),
                      .signal = verdict.cause.signal,
                      .reporter = verdict.reporter == options_.world.rank};
  if (options_.on_failure) options_.on_failure(failure);
}

void LivenessWatch::wait_for_news(TimePoint now) {
  std::vector<pollfd> entries{{.fd = stop_.wake_fd(), .events = POLLIN},
                              {.fd = news_.get(), .events = POLLIN}};
  for (const auto& rank : ranks_) {
    if (rank.socket.valid() && !rank.socket_closed) entries.push_back({rank.socket.get(), POLLIN, 0});
    bool watched = rank.slot && may_fail(rank) && rank.process_watch.pollable_fd() >= 0;
    if (watched) entries.push_back({rank.process_watch.pollable_fd(), POLLIN, 0});
  }
  TimePoint until = std::min(now + tick_, next_beat_);
  if (first_sign_ && !delivered_) until = std::min(until, std::max(now, *first_sign_ + options_.settle));
  ::poll(entries.data(), entries.size(), poll_timeout_ms(Deadline::at(until)));
  eventfd_t ignored = 0;
  ::eventfd_read(news_.get(), &ignored);
}

}  // namespace llm_dist::comm
