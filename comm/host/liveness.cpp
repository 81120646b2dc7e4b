#include "comm/host/liveness.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/host/liveness_watch.h"
#include "comm/host/rendezvous.h"
#include "comm/host/segment.h"
#include "comm/host/setup.h"

namespace llm_dist::comm {
namespace {

constexpr int kOnlyLane = 0;

Status check_options(const LivenessOptions& options) {
  RETURN_IF_ERROR(check_world(options.world));
  if (options.interval <= Duration::zero() || options.silence_limit < 3 * options.interval)
    return invalid_argument("liveness: the silence limit is to be at least three heartbeat intervals");
  return ok_status();
}

// Who the ranks are.
Result<std::vector<WatchedRank>> introduce(const LivenessOptions& options) {
  ASSIGN_OR_RETURN(auto cards, gather_or_fail(options.world, to_bytes(current_process())));
  std::vector<WatchedRank> ranks(cards.size());
  for (size_t r = 0; r < cards.size(); ++r) {
    ranks[r].rank = static_cast<int>(r);
    if (!from_bytes(cards[r], &ranks[r].process))
      return data_loss(format("rank {} is of another version", r));
  }
  return ranks;
}

Result<NodeMemory> share_board(const HostWorld& world, std::vector<std::string>* nodes) {
  size_t members = node_members(*nodes, world.rank).size();
  auto format = [members](std::byte* memory) { Board::format(memory, members); };
  ASSIGN_OR_RETURN(NodeMemory memory, share_node_memory(world, Board::memory_bytes(members), format, nodes));
  if (memory.segment.valid()) return memory;
  ASSIGN_OR_RETURN(memory.segment, Segment::create(Board::memory_bytes(1)));
  Board::format(memory.segment.data(), 1);
  return memory;
}

void find_neighbours(const NodeMemory& memory, const HostWorld& world, std::vector<WatchedRank>* ranks) {
  const ProcessId self = (*ranks)[static_cast<size_t>(world.rank)].process;
  for (size_t slot = 0; slot < memory.members.size(); ++slot) {
    WatchedRank& rank = (*ranks)[static_cast<size_t>(memory.members[slot])];
    rank.slot = slot;
    if (rank.process != self) rank.process_watch = ProcessWatch(rank.process);
  }
}

// Connects to lower ranks first and accepts higher ones then: the lowest rank only accepts, so that nobody
// waits in a circle.
Status connect_pairs(const HostWorld& world, const SocketPlan& plan, std::vector<WatchedRank>* ranks) {
  auto deadline = Deadline::after_seconds(world.setup_seconds);
  std::vector<PeerLane> higher;
  for (auto& rank : *ranks) {
    if (rank.slot) continue;
    if (rank.rank > world.rank) {
      higher.push_back({rank.rank, kOnlyLane});
      continue;
    }
    ASSIGN_OR_RETURN(rank.socket, connect_peer(plan, world.rank, {rank.rank, kOnlyLane}, deadline));
  }
  if (higher.empty()) return ok_status();
  ASSIGN_OR_RETURN(auto accepted, accept_peers(plan, higher, deadline));
  for (size_t i = 0; i < higher.size(); ++i)
    (*ranks)[static_cast<size_t>(higher[i].rank)].socket = std::move(accepted[i]);
  return ok_status();
}

Status connect_nodes(const HostWorld& world, std::vector<WatchedRank>* ranks) {
  bool listens = std::any_of(ranks->begin(), ranks->end(), [&](const WatchedRank& rank) {
    return !rank.slot && rank.rank > world.rank;
  });
  // Rank 0 always offers an address: the others choose their interface by the way to it.
  ASSIGN_OR_RETURN(SocketPlan plan, plan_sockets(world, listens || world.rank == 0));
  return agree(world, connect_pairs(world, plan, ranks));
}

}  // namespace

std::string format_failure(const RankFailure& failure) {
  std::string line = format("rank {} failed: host {}, pid {}, device {}, phase {}: {}",
                            failure.rank,
                            failure.host,
                            failure.pid,
                            failure.device.empty() ? "none" : failure.device,
                            failure.phase.empty() ? "starting" : failure.phase,
                            failure.cause);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

Result<std::unique_ptr<Liveness>> Liveness::start(const LivenessOptions& options) {
  const HostWorld& world = options.world;
  if (world.size > 1 && !world.all_gather) return invalid_argument("a world of ranks needs all_gather");
  RETURN_IF_ERROR(agree(world, check_options(options)));
  ASSIGN_OR_RETURN(auto ranks, introduce(options));
  std::vector<std::string> nodes = node_ids(world);
  ASSIGN_OR_RETURN(NodeMemory memory, share_board(world, &nodes));
  find_neighbours(memory, world, &ranks);
  bool several_nodes =
      std::any_of(nodes.begin(), nodes.end(), [&](const auto& n) { return n != nodes.front(); });
  if (several_nodes) RETURN_IF_ERROR(connect_nodes(world, &ranks));
  auto watch = std::make_unique<LivenessWatch>(options, std::move(memory), std::move(ranks));
  return std::unique_ptr<Liveness>(new Liveness(std::move(watch)));
}

Liveness::Liveness(std::unique_ptr<LivenessWatch> watch) : watch_(std::move(watch)) {}
Liveness::~Liveness() = default;
void Liveness::set_devices(std::vector<std::string> devices) { watch_->set_devices(std::move(devices)); }
void Liveness::set_phase(std::string_view phase) { watch_->set_phase(phase); }
void Liveness::announce_failure(std::string_view cause, int signal) {
  FailureCause told{.signal = signal, .text = {}};
  told.text.assign(cause);
  watch_->announce_failure(told);
}
void Liveness::leave() { watch_->leave(); }

}  // namespace llm_dist::comm
