#include "launch/placement.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "src/device/cpu/cgroup.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::launch {
namespace {

double read_or_0(std::ifstream file) {
  double value = 0;
  return file >> value ? value : 0;
}

// v2: quota and period in one file, and the quota may be "max". v1: a file each, and the quota may be -1.
double quota_of(const std::string& folder) {
  std::ifstream both(folder + "/cpu.max");
  double quota = 0, period = 0;
  if (!(both >> quota >> period)) {
    quota = read_or_0(std::ifstream(folder + "/cpu.cfs_quota_us"));
    period = read_or_0(std::ifstream(folder + "/cpu.cfs_period_us"));
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

bool same_node(const comm::HostInfo& a, const comm::HostInfo& b) {
  return a.hostname == b.hostname && a.boot_id == b.boot_id;
}

std::string pack(const std::vector<int>& cpus) {
  std::string text;
  for (int cpu : cpus) text += std::to_string(cpu) + " ";
  return text;
}
std::vector<int> unpack_cpus(const std::string& packed) {
  std::istringstream text(packed);
  return {std::istream_iterator<int>(text), {}};
}

// The quota is of all ranks of a host together.
int within_quota(int threads, int local_size) {
  const double quota = quota_cpus();
  if (quota > 0) threads = std::min(threads, std::max(1, static_cast<int>(quota)) / local_size);
  return std::max(1, threads);
}

}  // namespace

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> by_core(std::vector<int> cpus, const std::string& root) {
  std::map<int, std::pair<int, int>> places;  // socket and core; a system that tells none leaves the numbers
  for (int cpu : cpus) {
    const std::string folder = format("{}/sys/devices/system/cpu/cpu{}/topology/", root, cpu);
    std::ifstream(folder + "physical_package_id") >> places[cpu].first;
    std::ifstream(folder + "core_id") >> places[cpu].second;
  }
  std::ranges::stable_sort(cpus, {}, [&](int cpu) { return places.at(cpu); });
  return cpus;
}

double quota_cpus(const std::string& root) {
  double smallest = 0;
  for (const char* controller : {"", "cpu"}) {
    for (const std::string& folder : device::cgroup_folders(controller, root)) {
      const double quota = quota_of(folder);
      if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
    }
  }
  return smallest;
}

CpuShare share_of(const std::vector<comm::HostInfo>& hosts,
                  const std::vector<std::vector<int>>& allowed,
                  int rank) {
  const auto mine = static_cast<size_t>(rank);
  size_t before = 0, sharers = 0;
  for (size_t other = 0; other < hosts.size(); ++other) {
    const bool shares = same_node(hosts[other], hosts[mine]) && allowed[other] == allowed[mine];
    if (shares && other < mine) ++before;
    if (shares) ++sharers;
  }
  CpuShare share{.cpus = allowed[mine]};
  const size_t each = share.cpus.size() / sharers;
  if (each == 0) return share;
  share.threads = static_cast<int>(each);
  if (sharers == 1) return share;
  const auto begin = allowed[mine].begin() + static_cast<ptrdiff_t>(before * each);
  share.cpus.assign(begin, begin + static_cast<ptrdiff_t>(each));
  share.is_cut = true;
  return share;
}

Result<CpuShare> take_share(comm::World& world) {
  const Deadline deadline = Deadline::after(world.options().setup_timeout);
  ASSIGN_OR_RETURN(std::vector<std::string> packed,
                   world.all_gather_bytes(pack(by_core(allowed_cpus())), deadline));
  std::vector<std::vector<int>> allowed;
  allowed.reserve(packed.size());
  for (const std::string& of_rank : packed) allowed.push_back(unpack_cpus(of_rank));
  CpuShare share = share_of(world.hosts(), allowed, world.rank_info().rank);
  if (!share.is_cut) return share;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : share.cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  sched_setaffinity(0, sizeof set, &set);
  return share;
}

// No group may lie over the first rank of a node that follows another, nor over the last.
int ranks_per_node(std::span<const comm::HostInfo> hosts) {
  size_t common = hosts.size();
  for (size_t rank = 1; rank < hosts.size(); ++rank)
    if (!same_node(hosts[rank - 1], hosts[rank])) common = std::gcd(common, rank);
  return static_cast<int>(common);
}

std::string group_across_nodes(std::span<const comm::HostInfo> hosts, int tp) {
  for (size_t rank = 1; rank < hosts.size(); ++rank) {
    const size_t within = rank % static_cast<size_t>(tp);
    if (within == 0 || same_node(hosts[rank - 1], hosts[rank])) continue;
    return format("ranks {} to {}: {} is on {}, {} on {}",
                  rank - within,
                  rank - within + static_cast<size_t>(tp) - 1,
                  rank - 1,
                  hosts[rank - 1].hostname,
                  rank,
                  hosts[rank].hostname);
  }
  return "";
}

RankResources cpu_resources(const comm::World& world, const CpuShare& share) {
  constexpr int64_t kDefaultKvBytes = int64_t{4} << 30;
  const comm::RankInfo& info = world.rank_info();
  int local_size = world.hosts()[static_cast<size_t>(info.rank)].local_size;
  __builtin_cpu_init();
  const device::MemoryInfo memory = device::memory_of_rank(local_size);
  return {.world_size = info.size,
          .ranks_per_node = ranks_per_node(world.hosts()),
          .threads = within_quota(share.threads, local_size),
          .bf16_arithmetic = __builtin_cpu_supports("avx512bf16") != 0,
          .memory_bytes = memory.free_bytes,
          .total_memory_bytes = memory.total_bytes,
          .default_kv_bytes = kDefaultKvBytes / local_size};
}

std::string pack(const DeviceCard& card) { return card.name + "\n" + card.description; }

DeviceCard unpack_device_card(const std::string& packed) {
  const size_t end = packed.find('\n');
  if (end == std::string::npos) return {.name = packed, .description = {}};
  return {.name = packed.substr(0, end), .description = packed.substr(end + 1)};
}

Status refuse_shared_devices(std::span<const DeviceCard> cards) {
  auto shown = [](const DeviceCard& card) { return card.description.empty() ? card.name : card.description; };
  for (size_t a = 0; a < cards.size(); ++a) {
    for (size_t b = a + 1; b < cards.size(); ++b) {
      const std::string& gpu = cards[a].description;
      if (gpu.empty() != cards[b].description.empty())
        return failed_precondition(format("rank {} runs on {} and rank {} on {}: choose with --device",
                                          a,
                                          shown(cards[a]),
                                          b,
                                          shown(cards[b])));
      if (!gpu.empty() && gpu == cards[b].description)
        return failed_precondition(format("ranks {} and {} would share {}", a, b, gpu));
    }
  }
  return ok_status();
}

}  // namespace llm_dist::launch
