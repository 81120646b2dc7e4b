#include "comm/host/host_channel.h"

#include <bit>
#include <chrono>
#include <utility>

#include "comm/host/node_ring.h"
#include "comm/host/rendezvous.h"
#include "comm/host/root_sockets.h"
#include "comm/host/socket_channel.h"
#include "src/base/check.h"

namespace llm_dist::comm {
namespace {

// Rank 0.
class RootChannel final : public HostChannel {
 public:
  RootChannel(HostChannelInfo info, std::unique_ptr<NodeRing> ring, std::vector<RemoteRank> remotes)
      : info_(std::move(info)), ring_(std::move(ring)) {
    if (!remotes.empty()) sockets_ = std::make_unique<RootSockets>(std::move(remotes), &abort_, ring_.get());
  }
  ~RootChannel() override {
    if (ring_) ring_->close_writer();
  }

  const HostChannelInfo& info() const override { return info_; }

  Status publish(std::span<const std::byte> message, Deadline deadline) override {
    RETURN_IF_ERROR(cause());
    Status status = ring_ ? ring_->publish(message, deadline) : ok_status();
    if (status.ok() && sockets_) status = sockets_->publish(message, deadline);
    if (status.code() == StatusCode::kDeadlineExceeded) abort(status);
    return status;
  }
  Result<std::span<const std::byte>> receive(Deadline) override {
    CHECK(false, "rank 0 publishes, the others receive");
    return std::span<const std::byte>();
  }
  Status report(std::span<const std::byte>) override {
    CHECK(false, "rank 0 takes reports, the others send them");
    return ok_status();
  }
  Result<std::optional<HostReport>> try_take_report() override {
    RETURN_IF_ERROR(cause());
    std::optional<HostReport> report;
    if (ring_) report = ring_->try_take_report();
    if (!report && sockets_) report = sockets_->try_take_report();
    return report;
  }
  void abort(const Status& why) override {
    CHECK(!why.ok(), "an abort needs a cause");
    if (ring_) ring_->abort(why);
    if (abort_.set(why) && sockets_) sockets_->send_abort(why);
  }

 private:
  Status cause() const {
    if (abort_.is_set()) return abort_.cause();
    return ring_ ? ring_->cause() : ok_status();
  }

  HostChannelInfo info_;
  LocalAbort abort_;
  std::unique_ptr<NodeRing> ring_;
  std::unique_ptr<RootSockets> sockets_;
};

// A rank of rank 0's node.
class RingChannel final : public HostChannel {
 public:
  RingChannel(HostChannelInfo info, std::unique_ptr<NodeRing> ring)
      : info_(std::move(info)), ring_(std::move(ring)) {}
  ~RingChannel() override { ring_->close_reader(); }

  const HostChannelInfo& info() const override { return info_; }
  Status publish(std::span<const std::byte>, Deadline) override {
    CHECK(false, "only rank 0 publishes");
    return ok_status();
  }
  Result<std::span<const std::byte>> receive(Deadline deadline) override { return ring_->receive(deadline); }
  Status report(std::span<const std::byte> bytes) override {
    CHECK_LE(bytes.size(), kMaxReportBytes);
    return ring_->report(bytes);
  }
  Result<std::optional<HostReport>> try_take_report() override {
    CHECK(false, "only rank 0 takes reports");
    return std::optional<HostReport>();
  }
  void abort(const Status& why) override {
    CHECK(!why.ok(), "an abort needs a cause");
    ring_->abort(why);
  }

 private:
  HostChannelInfo info_;
  std::unique_ptr<NodeRing> ring_;
};

Status check_options(const HostChannelOptions& options) {
  RETURN_IF_ERROR(check_world(options.world));
  if (!std::has_single_bit(options.ring_bytes) || options.ring_bytes < 64)
    return invalid_argument(format("ring_bytes {} is not a power of two of at least 64", options.ring_bytes));
  return ok_status();
}

// The ring of rank 0's node; null where this rank has no part in it.
Result<std::unique_ptr<NodeRing>> make_ring(const HostChannelOptions& options,
                                            std::vector<std::string>* nodes) {
  int readers = static_cast<int>(node_members(*nodes, 0).size()) - 1;
  bool here = (*nodes)[static_cast<size_t>(options.world.rank)] == nodes->front();
  size_t bytes = here && readers > 0 ? NodeRing::memory_bytes(options.ring_bytes, readers) : 0;
  auto format = [&](std::byte* fresh) { NodeRing::format(fresh, options.ring_bytes, readers); };
  ASSIGN_OR_RETURN(NodeMemory memory, share_node_memory(options.world, bytes, format, nodes));
  if (!memory.segment.valid()) return std::unique_ptr<NodeRing>();
  return std::make_unique<NodeRing>(std::move(memory), options);
}

constexpr int kDataLane = 0;
constexpr int kControlLane = 1;

Result<std::vector<RemoteRank>> accept_remotes(const SocketPlan& plan,
                                               const std::vector<int>& ranks,
                                               Deadline deadline) {
  std::vector<PeerLane> expected;
  for (int rank : ranks) {
    expected.push_back({rank, kDataLane});
    expected.push_back({rank, kControlLane});
  }
  ASSIGN_OR_RETURN(auto accepted, accept_peers(plan, expected, deadline));
  std::vector<RemoteRank> remotes;
  remotes.reserve(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i)
    remotes.push_back({ranks[i], std::move(accepted[2 * i]), std::move(accepted[2 * i + 1])});
  return remotes;
}

// What a rank holds of the sockets: rank 0 all remote ranks, a remote rank its connections to rank 0.
Result<std::vector<RemoteRank>> connect_remotes(const HostWorld& world,
                                                const std::vector<int>& remote_ranks,
                                                bool remote,
                                                HostChannelInfo* info) {
  ASSIGN_OR_RETURN(SocketPlan plan, plan_sockets(world, world.rank == 0));
  info->address = to_string(plan.endpoints.front());
  auto deadline = Deadline::after_seconds(world.setup_seconds);
  if (world.rank == 0) return accept_remotes(plan, remote_ranks, deadline);
  std::vector<RemoteRank> lanes;
  if (!remote) return lanes;
  ASSIGN_OR_RETURN(Fd data, connect_peer(plan, world.rank, {0, kDataLane}, deadline));
  ASSIGN_OR_RETURN(Fd control, connect_peer(plan, world.rank, {0, kControlLane}, deadline));
  lanes.push_back({0, std::move(data), std::move(control)});
  return lanes;
}

std::vector<int> ranks_outside(const std::vector<std::string>& nodes) {
  std::vector<int> ranks;
  for (size_t r = 1; r < nodes.size(); ++r)
    if (nodes[r] != nodes.front()) ranks.push_back(static_cast<int>(r));
  return ranks;
}

std::string transport_name(bool ring, bool sockets) {
  if (ring && sockets) return "shared memory and sockets";
  return ring ? "shared memory" : sockets ? "sockets" : "none";
}

}  // namespace

Result<std::unique_ptr<HostChannel>> make_host_channel(const HostChannelOptions& options) {
  const HostWorld& world = options.world;
  if (world.size > 1 && !world.all_gather) return invalid_argument("a world of ranks needs all_gather");
  RETURN_IF_ERROR(agree(world, check_options(options)));
  HostChannelInfo info{.rank = world.rank, .size = world.size};
  std::vector<std::string> nodes = node_ids(world);
  std::unique_ptr<NodeRing> ring;
  std::vector<RemoteRank> lanes;
  if (world.size > 1) {
    ASSIGN_OR_RETURN(ring, make_ring(options, &nodes));
  }
  std::vector<int> remote_ranks = ranks_outside(nodes);
  if (!remote_ranks.empty()) {
    auto connected = connect_remotes(world, remote_ranks, ring == nullptr, &info);
    RETURN_IF_ERROR(agree(world, connected.status()));
    lanes = std::move(connected).value();
  }
  info.transport = transport_name(ring != nullptr, !lanes.empty());
  if (world.rank == 0)
    return std::unique_ptr<HostChannel>(new RootChannel(info, std::move(ring), std::move(lanes)));
  if (ring) return std::unique_ptr<HostChannel>(new RingChannel(info, std::move(ring)));
  return std::unique_ptr<HostChannel>(
      new SocketChannel(info, options, std::move(lanes[0].data), std::move(lanes[0].control)));
}

}  // namespace llm_dist::comm
