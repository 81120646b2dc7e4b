#include "launch/idle.h"

#include <charconv>
#include <set>

namespace llm_dist::launch {
namespace {

int64_t number(const comm::Environment& environment, const std::string& name) {
  auto found = environment.find(name);
  if (found == environment.end()) return 0;
  int64_t value = 0;
  std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  return value;
}

// A step knows its nodes itself; that several may be one host is for tests.
int64_t nodes_in_use(const comm::World& world, const comm::Environment& environment) {
  if (world.rank_info().source == comm::RankSource::kSlurmStep)
    return number(environment, "SLURM_STEP_NUM_NODES");
  std::set<std::string> hosts;
  for (const comm::HostInfo& host : world.hosts()) hosts.insert(host.hostname + host.boot_id);
  return static_cast<int64_t>(hosts.size());
}

}  // namespace

std::string idle_resources(const comm::World& world, const comm::Environment& environment, bool uses_gpus) {
  const comm::HostInfo& host = world.hosts()[static_cast<size_t>(world.rank_info().rank)];
  int64_t nodes = number(environment, "SLURM_JOB_NUM_NODES");
  int64_t used = nodes_in_use(world, environment);
  if (world.rank_info().rank == 0 && nodes > used)
    return format("Slurm has allocated {} nodes, and ranks run on {} of them", nodes, used);
  int64_t gpus = number(environment, "SLURM_GPUS_ON_NODE");
  int64_t used_gpus = uses_gpus ? host.local_size : 0;
  if (host.local_rank == 0 && gpus > used_gpus)
    return format(
        "Slurm has allocated {} GPUs on {}, and {} ranks run on GPUs there", gpus, host.hostname, used_gpus);
  return "";
}

}  // namespace llm_dist::launch
