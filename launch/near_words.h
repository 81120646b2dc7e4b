// What somebody may have meant who typed a word that is not known.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace llm_dist::launch {

// The nearest known word when it is near enough to be what was meant, else nothing.
std::string close_match(const std::string& word, const std::vector<std::string>& known);

// "--tp", "--tp-size", …: of the command, its option groups included.
std::vector<std::string> known_flags(const CLI::App& app);

}  // namespace llm_dist::launch
