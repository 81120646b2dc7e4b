// Which files this process has mapped, so that it can name what a library keeps in /dev/shm.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace llm_dist::comm {

// NCCL names its segments so, and leaves them behind when a process of a group dies.
inline constexpr std::string_view kNcclSegmentPrefix = "/dev/shm/nccl-";

// Paths that begin with `prefix`, each once, in the order of their addresses; files already deleted left out.
std::vector<std::string> mapped_files(std::string_view prefix);

}  // namespace llm_dist::comm
