// `llm-dist completion` and `llm-dist man`, in no list of commands: packagers and login scripts call them.
#pragma once

#include "launch/commands.h"

namespace llm_dist::launch {

// Both describe `program` as it is when they run: every command added to it, whenever that was.
RunCommand add_completion(CLI::App& program);
RunCommand add_man(CLI::App& program);

}  // namespace llm_dist::launch
