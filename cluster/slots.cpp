#include "cluster/slots.h"

#include <algorithm>
#include <numeric>

namespace llm_dist::cluster {

int Slots::most_ranks() const { return std::min(num_slots_, num_devices_); }

std::optional<std::vector<int>> Slots::choose(int ranks) const {
  if (ranks > most_ranks() || num_used() + ranks > num_slots_) return std::nullopt;
  if (std::optional<std::vector<int>> neighbours = choose_neighbours(ranks)) return neighbours;
  std::vector<int> chosen;
  std::set<int> devices;
  for (int slot = 0; slot < num_slots_ && std::ssize(chosen) < ranks; ++slot) {
    if (is_free(slot) && devices.insert(slot % num_devices_).second) chosen.push_back(slot);
  }
  if (std::ssize(chosen) < ranks) return std::nullopt;
  return chosen;
}

// Those that begin at a multiple of their length come first: they leave whole groups to others, and lie
// within what hosts link closest (pairs, fours, one socket's).
std::optional<std::vector<int>> Slots::choose_neighbours(int ranks) const {
  std::vector<int> run(ranks);
  for (int step : {ranks, 1}) {
    for (int first = 0; first + ranks <= num_slots_; first += step) {
      std::iota(run.begin(), run.end(), first);
      if (std::all_of(run.begin(), run.end(), [this](int slot) { return is_free(slot); })) return run;
    }
  }
  return std::nullopt;
}

}  // namespace llm_dist::cluster
