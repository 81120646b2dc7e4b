// What the slots of a machine stand for: its GPUs and cores.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cluster/slots.h"

namespace llm_dist::cluster {

struct SlotResources {
  int num_slots = 1;
  std::vector<std::string> gpus{};  // as CUDA_VISIBLE_DEVICES names them; empty: ranks run on cores
  std::vector<int>
      cpus{};  // that the slots share evenly, in this order; empty: what runs there is bound to none

  // Where there are more slots than GPUs, those whose numbers are equal modulo the GPUs share one.
  Slots free_slots() const;
  std::vector<std::string> gpus_of(std::span<const int> slots) const;
  // At least one for each: where there are more slots than cores, some share one.
  std::vector<int> cpus_of(std::span<const int> slots) const;
};

}  // namespace llm_dist::cluster
