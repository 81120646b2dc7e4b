#include "launch/flag_errors.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "launch/near_words.h"
#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

// A bound as CLI11 prints it, in fixed notation: its "any positive number" ends at 1.8e308.
bool is_number(const std::string& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

std::string beyond_range(const std::string& flag,
                         const std::string& value,
                         const std::string& low,
                         const std::string& high) {
  constexpr double kNoBound = 1e300;
  double given = 0, from = 0, to = 0;
  is_number(low, from);
  is_number(high, to);
  if (!is_number(value, given)) return format("{} {}: not a number", flag, value);
  if (to > kNoBound) return format("{} {}: too small", flag, value);
  return format("{} {}: not between {} and {}", flag, value, from, to);
}

// The innermost command that was named.
const CLI::App& command_of(const CLI::App& program) {
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  return *command;
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

std::vector<std::string> names_below(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* one : command.get_subcommands(
           [](const CLI::App* app) { return !app->get_name().empty() && !app->get_group().empty(); }))
    names.push_back(one->get_name());
  return names;
}

// What stands before, between and behind the separators, in their order; nothing where one of them is
// missing.
std::optional<std::vector<std::string>> between(const std::string& text,
                                                const std::vector<std::string>& separators) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (const std::string& separator : separators) {
    size_t found = text.find(separator, at);
    if (found == std::string::npos) return std::nullopt;
    parts.push_back(text.substr(at, found - at));
    at = found + separator.size();
  }
  parts.push_back(text.substr(at));
  return parts;
}

// CLI11's sentences: its exceptions hold no more than these.
std::string in_words(const CLI::App& command, const std::string& said) {
  if (auto range = between(said, {": Value ", " not in range ", " to "}))
    return beyond_range((*range)[0], (*range)[1], (*range)[2], (*range)[3]);
  if (auto conversion = between(said, {"Could not convert: ", " = "})) {
    const std::string& flag = (*conversion)[1];
    const CLI::Option* option = command.get_option_no_throw(flag);
    bool whole = option != nullptr && option->get_type_name().find("INT") != std::string::npos;
    return format("{} {}: {}",
                  flag,
                  (*conversion)[2],
                  whole ? "not a whole number, or one that is too large" : "not a number");
  }
  if (auto missing = between(said, {": ", " required ", "missing"}))
    return format("{}: its value is missing", missing->front());
  if (said != "A subcommand is required") return said;
  std::string names;
  for (const std::string& name : names_below(command)) names += (names.empty() ? "" : ", ") + name;
  return format("a command is missing: {}", names);
}

// "Did you mean --tensor-parallel-size?" for each flag that is not known, or for a command that is not.
std::string suggestions(const CLI::App& program, const std::vector<std::string>& arguments) {
  std::string lines;
  if (program.get_subcommands().empty() && !arguments.empty()) {
    std::string best = close_match(arguments.front(), names_below(program));
    if (!best.empty()) lines += format("{} is no command. Did you mean {}?\n", arguments.front(), best);
  }
  std::vector<std::string> known = known_flags(command_of(program));
  for (const std::string& argument : arguments) {
    std::string flag = argument.substr(0, argument.find('='));
    if (flag.rfind("--", 0) != 0 || std::find(known.begin(), known.end(), flag) != known.end()) continue;
    std::string best = close_match(flag, known);
    if (!best.empty()) lines += format("{} is not a flag here. Did you mean {}?\n", flag, best);
  }
  return lines;
}

}  // namespace

std::string flag_error(const CLI::App& program,
                       const CLI::ParseError& error,
                       const std::vector<std::string>& arguments) {
  const CLI::App& command = command_of(program);
  return format("llm-dist: {}\n{}{} --help lists what there is.\n",
                in_words(command, error.what()),
                suggestions(program, arguments),
                full_name(command));
}

}  // namespace llm_dist::launch
