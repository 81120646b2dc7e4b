// Completion scripts, one writer a shell. Each returns the whole text of the file that the shell reads.
#pragma once

#include <string>

#include "launch/command_tree.h"

namespace llm_dist::launch {

std::string bash_completion(const CommandEntry& program);
std::string zsh_completion(const CommandEntry& program);
std::string fish_completion(const CommandEntry& program);

}  // namespace llm_dist::launch
