// Placement: which part of a host a rank may use.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/world.h"
#include "launch/flags.h"

namespace llm_dist::launch {

// CPUs that this process may run on, by number.
std::vector<int> allowed_cpus();

// So that a run of them has whole cores, with all their hardware threads, and as few sockets as can be.
// `root`: the folder that holds proc and sys, for tests.
std::vector<int> by_core(std::vector<int> cpus, const std::string& root = "");

// CPUs' worth of time that the smallest quota among this process's cgroups (v1 or v2) grants; 0: no limit.
double quota_cpus(const std::string& root = "");

// The CPUs of one rank.
struct CpuShare {
  std::vector<int> cpus;
  bool is_cut = false;  // from those that its launcher gave to several ranks
  int threads = 1;      // that compute there, where no quota says less
};

// The largest size of tensor groups, which are runs of consecutive ranks, that keeps all of them inside a
// node, whatever divides it too. `hosts`: by rank.
int ranks_per_node(std::span<const comm::HostInfo> hosts);
// Empty where groups of `tp` ranks stay inside a node; else which of them does not, for a warning.
std::string group_across_nodes(std::span<const comm::HostInfo> hosts, int tp);

// Ranks of one host whose launcher gave them the same CPUs, all of the host or some, share them evenly, in
// the order of the ranks; where there are fewer CPUs than those ranks, all have all, and a thread each.
// `allowed`: by rank.
CpuShare share_of(const std::vector<comm::HostInfo>& hosts,
                  const std::vector<std::vector<int>>& allowed,
                  int rank);

// What this rank is to have: all ranks ask together. Binds it, where its launcher did not.
Result<CpuShare> take_share(comm::World& world);

// The CPU's part of what this rank can offer.
RankResources cpu_resources(const comm::World& world, const CpuShare& share);

// What a rank has to compute on, as the others are told.
struct DeviceCard {
  std::string name;         // "cpu", "cuda:0": a number that is this process's
  std::string description;  // of a GPU with its UUID: equal ones are the same GPU. Empty: a CPU
};
std::string pack(const DeviceCard& card);
DeviceCard unpack_device_card(const std::string& packed);
// By rank. GPUs beside CPUs and two ranks on one GPU are failed_precondition, which names the ranks.
Status refuse_shared_devices(std::span<const DeviceCard> cards);

}  // namespace llm_dist::launch
