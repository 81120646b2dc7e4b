// --config FILE: flags in a TOML or INI file.
#pragma once

#include <string>
#include <vector>

#include "src/base/status.h"

namespace CLI {
class App;
}

namespace llm_dist::launch {

// The arguments (first one first), and behind the command's name those of the file that --config names, as
// far as the arguments leave them open. Keys are flags without their dashes, in front of any section or in
// one named after the command or after one above it; those of other commands are only checked.
// invalid_argument names file and line, and for an unknown key or section the nearest known one. Uses up the
// parser's state.
Result<std::vector<std::string>> with_config_file(CLI::App& program,
                                                  const std::vector<std::string>& arguments);

}  // namespace llm_dist::launch
