// LivenessWatch: the thread behind Liveness, and what it knows of every rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/host/liveness.h"
#include "comm/host/liveness_board.h"
#include "comm/host/local_abort.h"
#include "comm/host/process_watch.h"
#include "comm/host/segment.h"
#include "comm/host/socket.h"

namespace llm_dist::comm {

// What ranks of different nodes send each other.
struct LivenessFrame {
  enum class Kind : uint32_t { kBeat = 1, kGoodbye, kAnnouncement, kVerdict };
  Kind kind = Kind::kBeat;
  Verdict verdict;  // beat: its phase; announcement: its phase and cause
};

// Why a rank is held for failed. What it says itself counts less than its death: a rank that complains may be
// the victim of the one that died.
enum class Sign : uint8_t { kNone, kAnnounced, kGone };

struct WatchedRank {
  int rank = 0;
  ProcessId process;
  std::optional<size_t> slot;  // on this node's board; ranks of other nodes have a socket
  Fd socket;
  ProcessWatch process_watch;  // where it is another process of this node

  uint64_t beats = 0;
  TimePoint heard;  // when it last gave a sign of life
  PhaseText phase;
  bool left = false;
  Sign sign = Sign::kNone;
  int sign_order = 0;
  FailureCause cause;

  LivenessFrame incoming;
  size_t filled = 0;
  bool socket_closed = false;
  bool cannot_send = false;  // guarded by the watch's send mutex
};

class LivenessWatch {
 public:
  // ranks: every rank of the world, in order; `memory` holds this node's board.
  LivenessWatch(LivenessOptions options, NodeMemory memory, std::vector<WatchedRank> ranks);
  ~LivenessWatch();

  void set_devices(std::vector<std::string> devices);
  void set_phase(std::string_view phase);
  void announce_failure(const FailureCause& cause);
  void leave();

 private:
  void run();
  void beat_if_due(TimePoint now);
  void look_at_board(TimePoint now);
  void look_at_slot(WatchedRank& rank, TimePoint now);
  void look_at_process(WatchedRank& rank, TimePoint now);
  void listen_to(WatchedRank& rank, TimePoint now);
  void take_frame(WatchedRank& rank, TimePoint now);
  void judge_silence(TimePoint now);
  void accuse_on_other_node(WatchedRank& silent, TimePoint now);
  void accuse_as_gone(WatchedRank& rank, std::string_view cause, TimePoint now);
  void accuse(WatchedRank& rank, Sign sign, const FailureCause& cause, TimePoint now);
  void conclude(TimePoint now);
  Verdict judge(TimePoint now) const;
  std::string device_of(const WatchedRank& rank);
  void deliver(const Verdict& verdict);
  void wait_for_news(TimePoint now);
  void send_to_other_nodes(const LivenessFrame& frame);
  void stop(RankState state);
  bool is_self(const WatchedRank& rank) const { return rank.rank == options_.world.rank; }
  static bool may_fail(const WatchedRank& rank) { return !rank.left && rank.sign == Sign::kNone; }
  const std::string& host_of(const WatchedRank& rank) const {
    return options_.world.hosts[static_cast<size_t>(rank.rank)];
  }
  // A rank heard within it lives.
  Duration fresh() const { return options_.interval * 5 / 2; }
  BoardSlot& own_slot();

  LivenessOptions options_;
  NodeMemory memory_;
  Board board_;
  std::vector<WatchedRank> ranks_;
  Duration tick_;
  TimePoint next_beat_;
  PhaseText sent_phase_;
  std::optional<TimePoint> first_sign_;
  int signs_ = 0;
  bool delivered_ = false;

  std::mutex devices_mutex_;
  std::vector<std::string> devices_;  // by rank; empty until they are chosen
  std::mutex phase_mutex_;
  std::mutex send_mutex_;
  Fd news_;  // an eventfd: this rank has announced a failure
  LocalAbort stop_;
  std::thread thread_;
};

}  // namespace llm_dist::comm
