// Slots by number: which are held, and which an attempt that starts takes. Knows no store and no device.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <vector>

namespace llm_dist::cluster {

// Slot i is on device i % num_devices, and each rank of an attempt needs a device of its own.
class Slots {
 public:
  explicit Slots(int num_slots) : Slots(num_slots, num_slots) {}
  Slots(int num_slots, int num_devices) : num_slots_(num_slots), num_devices_(num_devices) {}

  int size() const { return num_slots_; }
  int num_used() const { return static_cast<int>(held_.size()); }
  // Of one attempt, where all slots are free.
  int most_ranks() const;
  // A number that is too large counts too: of an attempt that began when there were more slots.
  void take(std::span<const int> slots) { held_.insert(slots.begin(), slots.end()); }
  // On different devices; next to each other where such are free, because neighbours have the fastest links.
  // Nothing: too few are free.
  std::optional<std::vector<int>> choose(int ranks) const;

 private:
  bool is_free(int slot) const { return !held_.contains(slot); }
  std::optional<std::vector<int>> choose_neighbours(int ranks) const;

  int num_slots_;
  int num_devices_;
  std::set<int> held_{};
};

}  // namespace llm_dist::cluster
