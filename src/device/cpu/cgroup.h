// The control groups, v1 and v2, that this process is in: a limit of each binds it, from its own up to the
// root.
#pragma once

#include <string>
#include <vector>

namespace llm_dist::device {

// The folders of this process's group and of those above it, its own first; not each need be there.
// `controller`: "memory", "cpu"… of v1; empty: v2. `root`: the folder that holds proc and sys, for tests.
std::vector<std::string> cgroup_folders(const std::string& controller, const std::string& root = "");

}  // namespace llm_dist::device
