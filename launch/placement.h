// Placement: which part of a host a rank may use.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/world.h"
#include "launch/flags.h"

namespace llm_dist::launch {

// CPUs that this process may run on.
std::vector<int> allowed_cpus();

// CPUs' worth of time that the smallest quota among this process's cgroups (v1 or v2) grants; 0: no limit.
// `root`: the folder that holds proc and sys, for tests.
double quota_cpus(const std::string& root = "");

// CPU threads for one of `local_size` ranks: the CPUs it is bound to, shared with the ranks that are bound to
// the same ones, and no more than the cgroup's quota. At least 1.
int threads_per_rank(int local_size);

// The largest size of tensor groups, which are runs of consecutive ranks, that keeps all of them inside a
// node, whatever divides it too. `hosts`: by rank.
int ranks_per_node(std::span<const comm::HostInfo> hosts);
// Empty where groups of `tp` ranks stay inside a node; else which of them does not, for a warning.
std::string group_across_nodes(std::span<const comm::HostInfo> hosts, int tp);

// The CPU's share for this rank.
RankResources cpu_resources(const comm::World& world);

// Gives this rank CPUs of its own when the launcher bound it to none: rank i of n takes the i-th share.
void bind_to_share(int local_rank, int local_size);

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
