#include "cluster/slot_resources.h"

#include <algorithm>
#include <set>

namespace llm_dist::cluster {

Slots SlotResources::free_slots() const {
  if (gpus.empty()) return Slots(num_slots);
  return Slots(num_slots, std::min(num_slots, static_cast<int>(gpus.size())));
}

std::vector<std::string> SlotResources::gpus_of(std::span<const int> slots) const {
  std::vector<std::string> found;
  if (gpus.empty()) return found;
  for (int slot : slots) found.push_back(gpus[static_cast<size_t>(slot) % gpus.size()]);
  return found;
}

std::vector<int> SlotResources::cpus_of(std::span<const int> slots) const {
  std::set<int> found;
  if (cpus.empty()) return {};
  const auto begin_of = [&](int slot) {
    return static_cast<size_t>(slot) * cpus.size() / static_cast<size_t>(num_slots);
  };
  for (int slot : slots) {
    const size_t begin = begin_of(slot);
    const size_t end = std::max(begin + 1, begin_of(slot + 1));
    found.insert(cpus.begin() + static_cast<ptrdiff_t>(begin), cpus.begin() + static_cast<ptrdiff_t>(end));
  }
  return {found.begin(), found.end()};
}

}  // namespace llm_dist::cluster
