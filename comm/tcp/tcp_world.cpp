#include "comm/tcp/tcp_world.h"

#include <algorithm>
#include <thread>

#include "comm/message_world.h"
#include "comm/tcp/tcp_link.h"
#include "src/base/log.h"

namespace llm_dist::comm {
namespace {

constexpr int kOnlyLane = 0;
constexpr auto kFarewell = std::chrono::seconds(2);
constexpr auto kTryAgainAfter = std::chrono::milliseconds(100);
constexpr auto kLookAgainAfter = std::chrono::milliseconds(1);

using Links = std::vector<std::unique_ptr<TcpLink>>;  // [world size]; this rank's own is null

class TcpChannel : public MessageChannel {
 public:
  TcpChannel(const Links& links, int id, std::span<const int> world_ranks)
      : links_(links), group_(id), world_ranks_(world_ranks.begin(), world_ranks.end()) {}
  ~TcpChannel() override { cancel(); }

  Status start_send(const void* data, size_t bytes, int peer, int tag) override {
    // Not written to: sends and receives share a struct.
    auto* unchanged = static_cast<std::byte*>(const_cast<void*>(data));
    TcpOperation& operation = begin(unchanged, bytes, peer, tag);
    link(peer).start_send(operation);
    return {};
  }
  Status start_recv(void* data, size_t bytes, int peer, int tag) override {
    TcpOperation& operation = begin(static_cast<std::byte*>(data), bytes, peer, tag);
    link(peer).start_recv(operation);
    return {};
  }
  Result<bool> progress() override {
    if (started_ == 0) return true;
    bool done = true;
    for (size_t i = 0; i < started_; ++i) {
      TcpOperation& operation = *operations_[i];
      if (!is_done(operation)) link(operation.peer).pump();
      if (!is_done(operation)) {
        done = false;
      } else if (!operation.error.ok()) {
        return operation.error;
      }
    }
    if (done) started_ = 0;
    return done;
  }
  std::vector<int> waiting_for() override {
    std::vector<int> peers;
    for (size_t i = 0; i < started_; ++i)
      if (!is_done(*operations_[i])) peers.push_back(operations_[i]->peer);
    return peers;
  }
  void cancel() override {
    for (size_t i = 0; i < started_; ++i)
      if (!is_done(*operations_[i])) link(operations_[i]->peer).cancel(*operations_[i]);
    started_ = 0;
  }

 private:
  static bool is_done(const TcpOperation& operation) {
    return operation.done.load(std::memory_order_acquire);
  }
  TcpLink& link(int peer) const {
    return *links_[static_cast<size_t>(world_ranks_[static_cast<size_t>(peer)])];
  }
  TcpOperation& begin(std::byte* data, size_t bytes, int peer, int tag) {
    CHECK(tag >= 0 && tag < kTags, "tag {}", tag);
    if (started_ == operations_.size()) operations_.push_back(std::make_unique<TcpOperation>());
    TcpOperation& operation = *operations_[started_++];
    operation.group = group_;
    operation.tag = tag;
    operation.peer = peer;
    operation.data = data;
    operation.bytes = bytes;
    operation.error = {};
    operation.done.store(false, std::memory_order_relaxed);
    return operation;
  }

  const Links& links_;
  int group_;
  std::vector<int> world_ranks_;
  std::vector<std::unique_ptr<TcpOperation>> operations_;  // the first `started_` are in use
  size_t started_ = 0;
};

class TcpTransport : public MessageTransport {
 public:
  TcpTransport(int rank, std::string address, std::vector<Fd> connections)
      : rank_(rank), address_(std::move(address)) {
    for (size_t peer = 0; peer < connections.size(); ++peer)
      links_.push_back(connections[peer].valid()
                           ? std::make_unique<TcpLink>(static_cast<int>(peer), std::move(connections[peer]))
                           : nullptr);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(links_.size()); }
  std::string address() const override { return address_; }
  std::unique_ptr<MessageChannel> open_channel(int id, std::span<const int> world_ranks) override {
    CHECK(id >= 0 && id < kGroups, "group {}", id);
    return std::make_unique<TcpChannel>(links_, id, world_ranks);
  }
  void post_notice(int world_rank, std::span<const std::byte> notice) override {
    links_[static_cast<size_t>(world_rank)]->post_notice(notice.first(std::min(notice.size(), kNoticeBytes)));
  }
  std::string take_notice() override {
    std::string notice;
    for (auto& link : links_) {
      if (link == nullptr) continue;
      link->pump();
      if (link->take_notice(&notice)) return notice;
    }
    return {};
  }
  // Everybody says goodbye before anybody closes: closing with something unread would take back what was
  // sent.
  Status finalize() override {
    auto deadline = Deadline::after(kFarewell);
    for (auto& link : links_)
      if (link != nullptr) link->finish_sending();
    auto all_finished = [&] {
      return std::all_of(
          links_.begin(), links_.end(), [](auto& link) { return link == nullptr || link->peer_finished(); });
    };
    while (!all_finished() && !deadline.expired()) std::this_thread::sleep_for(kLookAgainAfter);
    return {};
  }

 private:
  int rank_;
  std::string address_;
  Links links_;
};

// A peer gives a newcomer little time to say who it is; on a starved machine that can be too little once.
Result<Fd> connect_patiently(const SocketPlan& plan, int rank, PeerLane peer, Deadline deadline) {
  while (true) {
    auto connection = connect_peer(plan, rank, peer, deadline);
    bool again = connection.status().code() == StatusCode::kUnavailable && !deadline.expired();
    if (connection.ok() || !again) return connection;
    std::this_thread::sleep_for(kTryAgainAfter);
  }
}

// Connects to lower ranks first and accepts higher ones then: the lowest rank only accepts, so that nobody
// waits in a circle.
Result<std::vector<Fd>> connect_all(const SocketPlan& plan, int rank, Deadline deadline) {
  auto size = static_cast<int>(plan.endpoints.size());
  std::vector<Fd> connections(plan.endpoints.size());
  std::vector<PeerLane> higher;
  for (int peer = 0; peer < rank; ++peer) {
    ASSIGN_OR_RETURN(connections[static_cast<size_t>(peer)],
                     connect_patiently(plan, rank, {peer, kOnlyLane}, deadline));
  }
  for (int peer = rank + 1; peer < size; ++peer) higher.push_back({peer, kOnlyLane});
  if (higher.empty()) return connections;
  ASSIGN_OR_RETURN(std::vector<Fd> accepted, accept_peers(plan, higher, deadline));
  for (size_t i = 0; i < higher.size(); ++i)
    connections[static_cast<size_t>(higher[i].rank)] = std::move(accepted[i]);
  return connections;
}

}  // namespace

Result<std::unique_ptr<World>> make_tcp_world(const MeetingPlan& meeting,
                                              Deadline meeting_deadline,
                                              const RankInfo& info,
                                              const WorldOptions& options) {
  ASSIGN_OR_RETURN(SocketPlan plan, meet(meeting, meeting_deadline));
  log_debug("rank {} of {} at {}", info.rank, info.size, to_string(plan.listener.endpoint));
  auto connections = connect_all(plan, info.rank, Deadline::after(options.setup_timeout));
  if (!connections.ok()) return connections.status();
  std::string address = plan.endpoints[static_cast<size_t>(info.rank)].address;
  auto transport =
      std::make_unique<TcpTransport>(info.rank, std::move(address), std::move(connections).value());
  return make_message_world(std::move(transport), "tcp", info, options);
}

}  // namespace llm_dist::comm
