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
// one named after the command; sections of other commands are skipped. invalid_argument names an unknown key
// or section and the nearest known one. Uses up the parser's state.
Result<std::vector<std::string>> with_config_file(CLI::App& program,
                                                  const std::vector<std::string>& arguments);

}  // namespace llm_dist::launch
