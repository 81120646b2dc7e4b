#include "comm/message_world.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <sstream>

#include "comm/group_registry.h"
#include "comm/message_communicator.h"
#include "comm/message_wait.h"
#include "comm/self_communicator.h"
#include "src/base/fnv1a.h"

namespace llm_dist::comm {
namespace {

// Group 0 is the world itself; its tags:
enum WorldTag : int { kTagBytes, kTagPropose, kTagAgree };

// What the ranks of a new group tell its first rank, and what that answers.
struct GroupProposal {
  uint64_t fingerprint = 0;  // of name and members
  int64_t id = 0;            // the smallest that the sender has not used; the answer: the id, or −1
};

// The memory of one call's messages.
struct Proposals {
  GroupProposal mine;
  std::vector<GroupProposal> theirs;
  GroupProposal answer;
};
struct Exchange {
  std::string mine;
  uint64_t my_bytes = 0;
  std::vector<uint64_t> bytes;  // by rank, like what was gathered
  std::vector<std::string> gathered;
};

// A notice: why group `id` ended.
struct NoticeHeader {
  int32_t id = 0;
  int32_t code = 0;
};
constexpr int32_t kWholeWorld = 0;

uint64_t fingerprint_of(const std::string& name, std::span<const int> world_ranks) {
  std::string text = name;
  for (int rank : world_ranks) text += format(",{}", rank);
  return fnv1a(text);
}

std::string serialize(const HostInfo& host) {
  return format("{}\n{}\n{}\n{}", host.hostname, host.boot_id, host.pid, host.address);
}

Result<HostInfo> parse_host(const std::string& text) {
  HostInfo host;
  std::string pid;
  std::istringstream lines(text);
  for (std::string* line : {&host.hostname, &host.boot_id, &pid})
    if (!std::getline(lines, *line)) return data_loss("a rank's description of its host");
  host.pid = std::atoi(pid.c_str());
  std::getline(lines, host.address);
  return host;
}

class MessageWorld : public World, private NoticeReader {
 public:
  MessageWorld(std::unique_ptr<MessageTransport> transport,
               std::string backend,
               const RankInfo& info,
               const WorldOptions& options);
  Status gather_hosts();

  const RankInfo& rank_info() const override { return info_; }
  const std::vector<HostInfo>& hosts() const override { return hosts_; }
  const WorldOptions& options() const override { return options_; }
  Result<std::unique_ptr<Communicator>> make_communicator(std::span<const int> world_ranks,
                                                          const std::string& name,
                                                          const GroupOptions& wanted) override;
  Status barrier(Deadline deadline) override { return all_gather_bytes("", deadline).status(); }
  Result<std::vector<std::string>> all_gather_bytes(const std::string& mine, Deadline deadline) override;
  void abort(Status cause) override;
  Status close(Deadline deadline) override;

 private:
  void read_notices() override;
  Status wait(Deadline deadline, std::string_view what);
  Status end_channel(Status cause, std::shared_ptr<void> memory);
  Result<int> agree_on_id(std::span<const int> world_ranks, const std::string& name, Deadline deadline);
  Result<int> collect_proposals(std::span<const int> world_ranks, Proposals& proposals, Deadline deadline);
  Result<int> propose(int first_rank, Proposals& proposals, Deadline deadline);
  void tell(std::span<const int> world_ranks, int32_t id, const Status& cause);

  std::unique_ptr<MessageTransport> transport_;
  const std::string backend_;
  RankInfo info_;
  WorldOptions options_;
  std::vector<int> all_ranks_;
  std::vector<HostInfo> hosts_;
  GroupRegistry groups_;
  std::shared_ptr<FirstError> world_error_;
  std::atomic<bool> aborted_{false};  // by abort(); a failed gather ends the world's own channel alone
  std::mutex channel_mutex_;          // channel_ and next_id_
  std::mutex notices_mutex_;          // of those who read notices
  std::unique_ptr<MessageChannel> channel_;
  // Memory of messages that the channel withdrew: a peer may still write to it.
  std::shared_ptr<void> withdrawn_;
  int next_id_ = 1;
};

MessageWorld::MessageWorld(std::unique_ptr<MessageTransport> transport,
                           std::string backend,
                           const RankInfo& info,
                           const WorldOptions& options)
    : transport_(std::move(transport)),
      backend_(std::move(backend)),
      info_(info),
      options_(options),
      all_ranks_(static_cast<size_t>(info.size)),
      world_error_(groups_.open(kWholeWorld)) {
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  channel_ = transport_->open_channel(kWholeWorld, all_ranks_);
}

Status MessageWorld::gather_hosts() {
  HostInfo here = this_host();
  here.address = transport_->address();
  ASSIGN_OR_RETURN(auto texts, all_gather_bytes(serialize(here), Deadline::after(options_.setup_timeout)));
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(HostInfo host, parse_host(text));
    hosts_.push_back(std::move(host));
  }
  number_local_ranks(hosts_);
  const HostInfo& mine = hosts_[static_cast<size_t>(info_.rank)];
  info_.local_rank = mine.local_rank;
  info_.local_size = mine.local_size;
  return {};
}

Status MessageWorld::wait(Deadline deadline, std::string_view what) {
  Backoff backoff;
  MessageWait messages{.error = *world_error_,
                       .notices = *this,
                       .world_ranks = all_ranks_,
                       .group = "world",
                       .backoff = backoff};
  return wait_for_messages(*channel_, messages, deadline, what);
}

// A message that comes after all would be taken for the next call's: there is none.
Status MessageWorld::end_channel(Status cause, std::shared_ptr<void> memory) {
  channel_->cancel();
  withdrawn_ = std::move(memory);
  read_notices();  // what a peer said before it left tells more than that it left
  world_error_->set(std::move(cause));
  return world_error_->get();
}

// Lengths first, then the bytes.
Result<std::vector<std::string>> MessageWorld::all_gather_bytes(const std::string& mine, Deadline deadline) {
  std::lock_guard lock(channel_mutex_);
  RETURN_IF_ERROR(world_error_->get());
  CHECK_LE(mine.size(), MessageChannel::kMaxBytes);
  const auto exchange = std::make_shared<Exchange>();
  exchange->mine = mine;
  exchange->my_bytes = mine.size();
  exchange->bytes.assign(all_ranks_.size(), exchange->my_bytes);
  auto with_each_peer = [&](auto start) -> Status {
    for (int r : all_ranks_)
      if (r != info_.rank) RETURN_IF_ERROR(start(r, static_cast<size_t>(r)));
    return wait(deadline, "all_gather_bytes");
  };
  Status status = with_each_peer([&](int r, size_t i) -> Status {
    uint64_t& theirs = exchange->bytes[i];
    RETURN_IF_ERROR(channel_->start_recv(&theirs, sizeof theirs, r, kTagBytes));
    return channel_->start_send(&exchange->my_bytes, sizeof exchange->my_bytes, r, kTagBytes);
  });
  if (!status.ok()) return end_channel(std::move(status), exchange);
  std::vector<std::string>& gathered = exchange->gathered;
  gathered.assign(all_ranks_.size(), mine);
  for (size_t i = 0; i < gathered.size(); ++i) gathered[i].resize(exchange->bytes[i]);
  status = with_each_peer([&](int r, size_t i) -> Status {
    if (!gathered[i].empty())
      RETURN_IF_ERROR(channel_->start_recv(gathered[i].data(), gathered[i].size(), r, kTagBytes));
    return mine.empty() ? ok_status()
                        : channel_->start_send(exchange->mine.data(), mine.size(), r, kTagBytes);
  });
  if (!status.ok()) return end_channel(std::move(status), exchange);
  return std::move(gathered);
}

Result<int> MessageWorld::collect_proposals(std::span<const int> world_ranks,
                                            Proposals& proposals,
                                            Deadline deadline) {
  const GroupProposal& mine = proposals.mine;
  std::vector<GroupProposal>& all = proposals.theirs;
  all.assign(world_ranks.size(), mine);
  for (size_t i = 1; i < world_ranks.size(); ++i)
    RETURN_IF_ERROR(channel_->start_recv(&all[i], sizeof all[i], world_ranks[i], kTagPropose));
  RETURN_IF_ERROR(wait(deadline, "making a group"));
  GroupProposal& answer = proposals.answer = mine;
  for (const GroupProposal& proposal : all) answer.id = std::max(answer.id, proposal.id);
  for (const GroupProposal& proposal : all)
    if (proposal.fingerprint != mine.fingerprint) answer.id = -1;
  for (size_t i = 1; i < world_ranks.size(); ++i)
    RETURN_IF_ERROR(channel_->start_send(&answer, sizeof answer, world_ranks[i], kTagAgree));
  RETURN_IF_ERROR(wait(deadline, "making a group"));
  return static_cast<int>(answer.id);
}

Result<int> MessageWorld::propose(int first_rank, Proposals& proposals, Deadline deadline) {
  const GroupProposal& mine = proposals.mine;
  GroupProposal& answer = proposals.answer;
  RETURN_IF_ERROR(channel_->start_send(&mine, sizeof mine, first_rank, kTagPropose));
  RETURN_IF_ERROR(channel_->start_recv(&answer, sizeof answer, first_rank, kTagAgree));
  RETURN_IF_ERROR(wait(deadline, "making a group"));
  return static_cast<int>(answer.fingerprint == mine.fingerprint ? answer.id : -1);
}

// The largest of what its ranks have not used: then no two groups with a rank in common share an id.
Result<int> MessageWorld::agree_on_id(std::span<const int> world_ranks,
                                      const std::string& name,
                                      Deadline deadline) {
  std::lock_guard lock(channel_mutex_);
  RETURN_IF_ERROR(world_error_->get());
  const auto proposals = std::make_shared<Proposals>();
  proposals->mine = {.fingerprint = fingerprint_of(name, world_ranks), .id = next_id_};
  bool first = world_ranks[0] == info_.rank;
  auto agreed = first ? collect_proposals(world_ranks, *proposals, deadline)
                      : propose(world_ranks[0], *proposals, deadline);
  if (!agreed.ok()) return end_channel(agreed.status(), proposals);
  int id = *agreed;
  if (id < 0)
    return failed_precondition(
        format("group {}: rank {} and its peers make different groups", name, info_.rank));
  if (id >= MessageTransport::kGroups) return resource_exhausted(format("{} groups made", id));
  next_id_ = id + 1;
  return id;
}

Result<std::unique_ptr<Communicator>> MessageWorld::make_communicator(std::span<const int> world_ranks,
                                                                      const std::string& name,
                                                                      const GroupOptions& wanted) {
  ASSIGN_OR_RETURN(int rank, rank_in_group(world_ranks, info_));
  if (world_ranks.size() == 1) return std::unique_ptr<Communicator>(std::make_unique<SelfCommunicator>(name));
  ASSIGN_OR_RETURN(int id, agree_on_id(world_ranks, name, Deadline::after(options_.setup_timeout)));
  std::vector<int> members(world_ranks.begin(), world_ranks.end());
  MessageGroup group{.world_ranks = members,
                     .channel = transport_->open_channel(id, members),
                     .error = groups_.open(id),
                     .notices = this,
                     .tell_peers = [this, members, id](const Status& cause) { tell(members, id, cause); },
                     .timeout = wanted.timeout.value_or(options_.collective_timeout),
                     .longest_sleep = wanted.polls_often ? Backoff::kShortestSleep : Backoff::kLongestSleep};
  CommInfo info{.backend = backend_, .name = name, .rank = rank, .size = static_cast<int>(members.size())};
  return std::unique_ptr<Communicator>(
      std::make_unique<MessageCommunicator>(std::move(info), std::move(group)));
}

void MessageWorld::tell(std::span<const int> world_ranks, int32_t id, const Status& cause) {
  NoticeHeader header{.id = id, .code = static_cast<int32_t>(cause.code())};
  std::string notice(reinterpret_cast<const char*>(&header), sizeof header);
  notice += cause.message().substr(0, MessageTransport::kNoticeBytes - sizeof header);
  for (int r : world_ranks)
    if (r != info_.rank) transport_->post_notice(r, std::as_bytes(std::span(notice)));
}

// Of two threads that look at once, the second goes on when what the first has found is known: its own
// message may have ended with the connection that the notice came by.
void MessageWorld::read_notices() {
  std::lock_guard lock(notices_mutex_);
  for (std::string notice = transport_->take_notice(); !notice.empty(); notice = transport_->take_notice()) {
    NoticeHeader header;
    if (notice.size() < sizeof header) continue;
    std::memcpy(&header, notice.data(), sizeof header);
    Status cause(static_cast<StatusCode>(header.code), notice.substr(sizeof header));
    if (cause.ok()) continue;
    if (header.id == kWholeWorld) {
      groups_.abort_all(cause);
    } else {
      groups_.abort(header.id, cause);
    }
  }
}

void MessageWorld::abort(Status cause) {
  if (aborted_.exchange(true)) return;
  groups_.abort_all(cause);
  tell(all_ranks_, kWholeWorld, cause);
}

Status MessageWorld::close(Deadline deadline) {
  RETURN_IF_ERROR(barrier(deadline));
  std::lock_guard lock(channel_mutex_);
  channel_.reset();
  return transport_->finalize();
}

}  // namespace

Result<std::unique_ptr<World>> make_message_world(std::unique_ptr<MessageTransport> transport,
                                                  const std::string& backend,
                                                  const RankInfo& info,
                                                  const WorldOptions& options) {
  if (transport->rank() != info.rank || transport->size() != info.size)
    return failed_precondition(
        format("{} says rank {} of {}, {} says rank {} of {}: start with mpirun, or with srun --mpi=pmix",
               info.source,
               info.rank,
               info.size,
               backend,
               transport->rank(),
               transport->size()));
  auto world = std::make_unique<MessageWorld>(std::move(transport), backend, info, options);
  RETURN_IF_ERROR(world->gather_hosts());
  return std::unique_ptr<World>(std::move(world));
}

}  // namespace llm_dist::comm
