// "--flag=$UNSET" in a script: a flag whose value is empty.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace llm_dist::launch {

// "--x=" as the two words "--x" and "", which is how CLI11 takes an empty value: of "--x=" the next word
// would be the value. A switch, which takes none, stays as it is.
std::vector<std::string> with_empty_values(const CLI::App& program,
                                           const std::vector<std::string>& arguments);

// After a parse of `arguments`: throws CLI::ValidationError where an empty value is none, that is of a
// number, of a switch, and of what the server's safety hangs on.
void refuse_empty_values(const CLI::App& program, const std::vector<std::string>& arguments);

}  // namespace llm_dist::launch
