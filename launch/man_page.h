// Man pages in roff, section 1, one a command.
#pragma once

#include <string>

#include "launch/command_tree.h"

namespace llm_dist::launch {

// "llm-dist-bench-latency".
std::string page_name(const CommandEntry& command);

// `command` is within `program`, which names the pages to see also; `version` stands at the foot.
std::string man_page(const CommandEntry& program, const CommandEntry& command, const std::string& version);

}  // namespace llm_dist::launch
