// Which rank this process is, from what its launcher left in the environment.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace llm_dist::comm {

enum class RankSource : uint8_t { kSingle, kFlags, kOpenMpi, kSlurmStep, kTorchrun };
// "single process", "flags", "Open MPI", "Slurm step", "torchrun"
std::string_view to_string(RankSource source);

struct RankInfo {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  RankSource source = RankSource::kSingle;
};

// Given on the command line; they win over the environment. Rank and size go together.
struct RankFlags {
  std::optional<int> rank;
  std::optional<int> size;
  std::optional<int> local_rank;
  std::optional<int> local_size;
};

using Environment = std::map<std::string, std::string>;
Environment read_environment();

// Flags → Open MPI (PMIx) → a real Slurm step → torchrun → single process. A batch script's SLURM_NTASKS is
// not a step: it says what srun may start, not that srun started this. Half-set or contradictory variables
// are invalid_argument, naming the variable.
Result<RankInfo> discover_ranks(const RankFlags& flags, const Environment& environment);

}  // namespace llm_dist::comm
