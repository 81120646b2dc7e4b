// RootSockets: rank 0's half of the channel towards the ranks that share no memory with it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "comm/host/control_lane.h"
#include "comm/host/host_channel.h"
#include "comm/host/local_abort.h"
#include "comm/host/message_assembler.h"
#include "comm/host/node_ring.h"
#include "comm/host/socket.h"

namespace llm_dist::comm {

// A remote rank's two connections: a message under way on one never delays an abort on the other.
struct RemoteRank {
  int rank = 0;
  Fd data;
  Fd control;
};

// Reports are taken off their sockets by a thread of its own, which also carries an abort between the remote
// ranks and `ring` (may be null) while rank 0 makes no call.
class RootSockets {
 public:
  RootSockets(std::vector<RemoteRank> remotes, LocalAbort* abort, NodeRing* ring);
  ~RootSockets();

  // kDeadlineExceeded: some ranks hold half of the message. kUnavailable: a rank has left.
  Status publish(std::span<const std::byte> message, Deadline deadline);
  std::optional<HostReport> try_take_report();
  // Tells every remote rank.
  void send_abort(const Status& cause);

 private:
  struct Remote {
    Remote(int rank_in, Fd data_in, Fd control_in)
        : rank(rank_in), data(std::move(data_in)), control(std::move(control_in)) {}

    int rank;
    Fd data;
    ControlLane control;
    std::atomic<bool> left{false};
    size_t sent = 0;  // bytes of the message under way, its header included
  };
  struct Report {
    int rank = 0;
    size_t bytes = 0;
    std::vector<std::byte> data;
  };

  // True when all of it is sent, or the rank has left.
  bool push(Remote& remote, const MessageHeader& header, std::span<const std::byte> message);
  static Status has_left(const Remote& remote);
  Status wait_writable(Deadline deadline);
  void serve();
  void serve_remote(Remote& remote);
  void spread_abort(const Status& cause);
  bool queue_full() const;
  void queue_report(int rank, std::span<const std::byte> bytes);

  std::vector<std::unique_ptr<Remote>> remotes_;
  LocalAbort* abort_;
  NodeRing* ring_;
  std::vector<Remote*> unfinished_;  // of the message under way

  mutable std::mutex reports_mutex_;
  std::vector<Report> reports_;  // a ring of slots
  size_t first_report_ = 0;
  size_t report_count_ = 0;
  Report taken_;

  LocalAbort stop_;
  std::thread server_;
};

}  // namespace llm_dist::comm
