#include "comm/p2p_groups.h"

#include <algorithm>
#include <vector>

#include "comm/nccl_groups.h"
#include "comm/nccl_loader.h"
#include "src/base/log.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::comm {
namespace {

// In which all ranks of a group come to its end; they do so together, or something is wrong.
constexpr double kLeaveSeconds = 2;
// What a rank says in an exchange: whether it goes on, and a card or a reason.
constexpr size_t kWordBytes = 512;

bool share_a_host(const World& world, std::span<const int> world_ranks) {
  const HostInfo& first = world.hosts()[static_cast<size_t>(world_ranks[0])];
  return std::all_of(world_ranks.begin(), world_ranks.end(), [&](int rank) {
    const HostInfo& host = world.hosts()[static_cast<size_t>(rank)];
    return host.hostname == first.hostname && host.boot_id == first.boot_id;
  });
}

// The ranks of one group, on their hosts.
class Meeting {
 public:
  Meeting(std::unique_ptr<Communicator> hosts, Deadline deadline)
      : hosts_(std::move(hosts)), backend_(device::make_cpu_backend({})), deadline_(deadline) {}

  // Every rank's `mine`, in rank order; failed_precondition with the first failing rank's reason on all of
  // them. Another error: a rank was not heard.
  Result<std::vector<std::string>> exchange(const Result<std::string>& mine) {
    std::string word = mine.ok() ? "+" + mine.value() : "-" + mine.status().message();
    const size_t length = std::min(word.size(), kWordBytes - 1) - 1;
    word.resize(length + 1);
    word.resize(kWordBytes);  // ends with a zero
    ASSIGN_OR_RETURN(std::string all, gather(word));
    std::vector<std::string> said;
    for (size_t at = 0; at < all.size(); at += kWordBytes) {
      if (all[at] != '+')
        return failed_precondition(format("rank {} of the group: {}", at / kWordBytes, all.c_str() + at + 1));
      said.push_back(all.substr(at + 1, length));
    }
    return said;
  }

  // Ok when every rank has come here.
  Status leave() {
    deadline_ = Deadline::after_seconds(kLeaveSeconds);
    Status status = exchange(std::string()).status();
    if (!status.ok()) hosts_->abort(status);
    return status;
  }

 private:
  Result<std::string> gather(std::string& word) {
    std::string all(kWordBytes * static_cast<size_t>(hosts_->info().size), '\0');
    constexpr int64_t kWords = kWordBytes / sizeof(int32_t);
    std::unique_ptr<device::Stream> stream = backend_->make_stream("peers");
    hosts_->all_gather(Tensor::contiguous(word.data(), DType::kI32, {kWords}),
                       Tensor::contiguous(all.data(), DType::kI32, {kWords * hosts_->info().size}),
                       *stream);
    Status status = stream->synchronize(deadline_);
    if (!status.ok()) hosts_->abort(status);  // lets go of both words
    RETURN_IF_ERROR(status);
    return all;
  }

  std::unique_ptr<Communicator> hosts_;
  std::unique_ptr<device::Backend> backend_;
  Deadline deadline_;
};

Result<std::string> without_text(const Status& status) {
  if (!status.ok()) return status;
  return std::string();
}

// Null, and why: NCCL alone. An error: a rank was not heard.
Result<std::unique_ptr<PeerMemory>> open_peers(const NcclModule& module,
                                               const PeerGroup& group,
                                               Meeting& meeting,
                                               Status& why) {
  std::unique_ptr<PeerMemory> memory = module.make_peer_memory(group);
  Result<std::vector<std::string>> cards = meeting.exchange(memory->prepare());
  if (cards.ok()) cards = meeting.exchange(without_text(memory->open(cards.value())));
  why = cards.status();
  if (why.ok()) return memory;
  if (why.code() == StatusCode::kFailedPrecondition) return std::unique_ptr<PeerMemory>();
  return why;
}

void say_which(const PeerGroup& group, const Status& why) {
  if (group.info.rank != 0) return;
  if (!why.ok()) {
    log_info("group {}: collectives over NCCL ({})", group.info.name, why.message());
    return;
  }
  const PeerLimits& limits = group.limits;
  if (limits.message_bytes > 0) {
    log_info("group {}: messages of up to {} MiB over peer memory, larger ones over NCCL",
             group.info.name,
             limits.message_bytes >> 20);
  }
  if (limits.largest() == 0) return;
  const int64_t norms = limits.norm_bytes / 1024;
  log_info(
      "group {}: all-reduces of up to {} KiB{} and gathers of up to {} KiB over peer memory, larger ones "
      "over NCCL",
      group.info.name,
      limits.largest() / 1024,
      norms > 0 ? format(" ({} with the norm behind them)", norms) : std::string(),
      limits.largest_parts(group.info.size) / 1024);
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_p2p_communicator(World& world,
                                                            std::span<const int> world_ranks,
                                                            const std::string& name,
                                                            int device_index,
                                                            const PeerLimits& limits) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> nccl,
                   make_nccl_communicator(
                       world, world_ranks, name, device_index, {.hands_off = limits.message_bytes > 0}));
  return put_peer_memory_before(std::move(nccl), world, world_ranks, device_index, limits);
}

Result<std::unique_ptr<Communicator>> put_peer_memory_before(std::unique_ptr<Communicator> fallback,
                                                             World& world,
                                                             std::span<const int> world_ranks,
                                                             int device_index,
                                                             const PeerLimits& limits) {
  if (world_ranks.size() == 1) return fallback;
  PeerGroup group{.info = fallback->info(), .device_index = device_index, .limits = limits};
  if (!share_a_host(world, world_ranks)) {
    say_which(group, failed_precondition("its ranks are on several hosts"));
    return fallback;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> hosts,
                   world.make_communicator(world_ranks, group.info.name + "-peers"));
  ASSIGN_OR_RETURN(const NcclModule* module, open_nccl_module());
  auto meeting = std::make_shared<Meeting>(std::move(hosts), Deadline::after(world.options().setup_timeout));
  group.leave = [meeting] { return meeting->leave(); };
  Status why;
  ASSIGN_OR_RETURN(std::unique_ptr<PeerMemory> memory, open_peers(*module, group, *meeting, why));
  say_which(group, why);
  if (memory == nullptr) return fallback;
  return memory->connect(std::move(fallback));
}

}  // namespace llm_dist::comm
