// Attempts as processes of this machine: a keeper (`llm-dist keep`) in a session of its own, below it mpirun,
// below that the ranks. The keeper outlives the coordinator and notes the exit code.
#pragma once

#include <sys/resource.h>

#include <memory>
#include <optional>
#include <string>

#include "cluster/launcher.h"
#include "cluster/slot_resources.h"

namespace llm_dist::cluster {

struct LocalLauncherOptions {
  std::string program;     // llm-dist itself
  std::string store_path;  // whose lock tells keepers that a coordinator lives
  SlotResources slots{};
  int orphan_seconds = 60;             // without any coordinator, then a keeper ends its attempt
  std::optional<rlimit> open_files{};  // of what it starts; nothing: as this process
};

std::unique_ptr<Launcher> make_local_launcher(LocalLauncherOptions options);

// Where a keeper writes the exit code of its command.
std::string exit_file_of(const std::string& folder);
std::string log_file_of(const std::string& folder);
// The last line of a log in which llm-dist said why it ends ("llm-dist: …", or an error of --log-format
// json), without what introduces it; behind it stand mpirun's own words. Empty: the log's end has none.
std::string last_words(const std::string& log_file);

// The processes whose environment has NAME=VALUE, without this one. An error: not all of them could be looked
// at.
Result<std::vector<int>> processes_with(const std::string& name, const std::string& value);

inline constexpr const char* kMarkVariable = "LLM_DIST_ATTEMPT";

}  // namespace llm_dist::cluster
