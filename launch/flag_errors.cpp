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

// What the flag's value is no instance of.
std::string kind_of_value(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  bool whole = option != nullptr && option->get_type_name().find("INT") != std::string::npos;
  return whole ? "not a whole number" : "not a number";
}

std::string empty_value(const std::string& flag) { return flag + ": its value is empty"; }

std::string beyond_range(const CLI::App& command, const std::vector<std::string>& said) {
  constexpr double kNoBound = 1e300;
  const std::string& flag = said[0];
  const std::string& value = said[1];
  if (value.empty()) return empty_value(flag);
  double given = 0, from = 0, to = 0;
  is_number(said[2], from);
  is_number(said[3], to);
  if (!is_number(value, given)) return format("{} {}: {}", flag, value, kind_of_value(command, flag));
  if (to > kNoBound) return format("{} {}: too small", flag, value);
  return format("{} {}: not between {} and {}", flag, value, from, to);
}

// CLI11 has the same words for a text that is no number and for a number that its type cannot hold.
std::string unconverted(const CLI::App& command, const std::string& flag, const std::string& value) {
  if (value.empty()) return empty_value(flag);
  bool negative = value.starts_with('-');
  bool digits =
      value.size() > size_t{negative} && value.find_first_not_of("0123456789", negative) == value.npos;
  if (!digits) return format("{} {}: {}", flag, value, kind_of_value(command, flag));
  return format("{} {}: too {}", flag, value, negative ? "small" : "large");
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

// What stands where a command below `command` would: the first word behind its name, which may be a flag.
std::string in_place_of_command(const CLI::App& command, const std::vector<std::string>& arguments) {
  if (names_below(command).empty()) return "";
  auto word = arguments.begin();
  if (command.get_parent() != nullptr) word = std::find(word, arguments.end(), command.get_name());
  if (word != arguments.end() && command.get_parent() != nullptr) ++word;
  return word == arguments.end() ? "" : *word;
}

std::string no_command(const CLI::App& command, const std::string& instead) {
  std::string names;
  for (const std::string& name : names_below(command)) names += (names.empty() ? "" : ", ") + name;
  if (instead.empty()) return format("a command is missing: {}", names);
  if (instead.starts_with('-')) return format("a command is missing in front of {}: {}", instead, names);
  return format("{} is no command: {}", instead, names);
}

// CLI11's sentences: its exceptions hold no more than these. Newer ones put a range in brackets.
std::string in_words(const CLI::App& command, const std::string& instead, const std::string& said) {
  if (auto range = between(said, {": Value ", " not in range [", " - ", "]"}))
    return beyond_range(command, *range);
  if (auto range = between(said, {": Value ", " not in range ", " to "}))
    return beyond_range(command, *range);
  if (auto conversion = between(said, {"Could not convert: ", " = "}))
    return unconverted(command, (*conversion)[1], (*conversion)[2]);
  if (auto missing = between(said, {": ", " required ", "missing"}))
    return format("{}: its value is missing", missing->front());
  return said == "A subcommand is required" ? no_command(command, instead) : said;
}

// What people bring along from where they served before, and is not a typing error.
constexpr std::string_view kNotServed[] = {"--cpu-offload-gb",
                                           "--data-parallel-size",
                                           "--enable-expert-parallel",
                                           "--enable-prefix-caching",
                                           "--no-enable-prefix-caching",
                                           "--seed",
                                           "--swap-space",
                                           "--trust-remote-code"};

// "Did you mean --tensor-parallel-size?" for each flag that is not known, or for a command that is not.
std::string suggestions(const CLI::App& command,
                        const std::string& instead,
                        const std::vector<std::string>& arguments) {
  std::string lines;
  if (!instead.empty() && !instead.starts_with('-')) {
    std::string best = close_match(instead, names_below(command));
    if (!best.empty()) lines += format("Did you mean {}?\n", best);
  }
  std::vector<std::string> known = known_flags(command);
  for (const std::string& argument : arguments) {
    std::string flag = argument.substr(0, argument.find('='));
    if (flag.rfind("--", 0) != 0 || std::find(known.begin(), known.end(), flag) != known.end()) continue;
    if (std::ranges::find(kNotServed, flag) != std::end(kNotServed)) {
      lines += format("{} is known from other servers and not served here: leave it out.\n", flag);
      continue;
    }
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
  std::string instead = in_place_of_command(command, arguments);
  return format("llm-dist: {}\n{}{} --help lists what there is.\n",
                in_words(command, instead, error.what()),
                suggestions(command, instead, arguments),
                full_name(command));
}

}  // namespace llm_dist::launch
