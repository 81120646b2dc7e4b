// What is wrong with a command line, for whoever typed it.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace llm_dist::launch {

// The parser's complaint in words, where to read on, and the nearest known word for each that is not known:
// lines, the first of them "llm-dist: …".
std::string flag_error(const CLI::App& program,
                       const CLI::ParseError& error,
                       const std::vector<std::string>& arguments);

}  // namespace llm_dist::launch
