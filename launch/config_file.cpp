#include "launch/config_file.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "launch/command_tree.h"
#include "launch/config_entries.h"
#include "launch/near_words.h"
#include "src/base/small_file.h"

namespace llm_dist::launch {

namespace {

// The command whose flags these are: the innermost one.
CLI::App* chosen_command(CLI::App& program) {
  CLI::App* command = &program;
  for (CLI::App* inner = command; inner != nullptr;) {
    command = inner;
    inner = nullptr;
    for (CLI::App* sub : command->get_subcommands())
      if (!sub->get_name().empty()) inner = sub;  // the others are groups of options
  }
  return command;
}

// Enough of a parse to know which command it is and which of its options are given. What is wrong with the
// arguments comes up when they are parsed again, together with the file's.
void parse_quietly(CLI::App& program, const std::vector<std::string>& arguments) {
  try {
    program.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError&) {
    return;
  }
}

std::vector<const CLI::App*> commands_below(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); });
}

// "bench latency"; nothing of the program.
std::vector<std::string> path_of(const CLI::App& command) {
  if (command.get_parent() == nullptr) return {};
  std::vector<std::string> path = path_of(*command.get_parent());
  path.push_back(command.get_name());
  return path;
}

// What sections may be called: "bench", "bench.latency", "latency".
std::vector<std::string> section_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_below(app)) {
    std::vector<std::string> path = path_of(*command);
    names.push_back(path.back());
    if (path.size() > 1) names.push_back(joined(path, "."));
    for (std::string& inner : section_names(*command)) names.push_back(std::move(inner));
  }
  return names;
}

const CLI::App* find_below(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : commands_below(app))
    if (command->get_name() == name) return command;
  return nullptr;
}

// The command that a section names by its words from the program on, or by its last one; nullptr for none.
const CLI::App* find_command(const CLI::App& program, const std::vector<std::string>& section) {
  const CLI::App* command = &program;
  for (const std::string& word : section)
    if (command != nullptr) command = find_below(*command, word);
  if (command != nullptr || section.size() > 1) return command;
  for (const CLI::App* group : commands_below(program))
    if (command == nullptr) command = find_below(*group, section.front());
  return command;
}

const CLI::Option* find_flag(const CLI::App& command, const std::string& name) {
  if (name == "help" || name == "config") return nullptr;
  const CLI::Option* flag = command.get_option_no_throw("--" + name);
  if (flag != nullptr) return flag;
  const CLI::Option* positional = command.get_option_no_throw(name);
  return positional != nullptr && positional->get_positional() ? positional : nullptr;
}

bool is_known(const CLI::App& command, const std::string& name) {
  if (find_flag(command, name) != nullptr) return true;
  return std::ranges::any_of(commands_below(command),
                             [&](const CLI::App* below) { return is_known(*below, name); });
}

// Of the command and of those below it.
std::vector<std::string> key_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const std::string& flag : known_flags(command)) names.push_back(flag.substr(2));
  for (const CLI::Option* option : command.get_options())
    if (option->get_positional()) names.push_back(option->get_name(true));
  for (const CLI::App* below : commands_below(command))
    for (std::string& name : key_names(*below)) names.push_back(std::move(name));
  return names;
}

bool leads_to(const CLI::App& place, const CLI::App& command) {
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent())
    if (at == &place) return true;
  return false;
}

class ConfigArguments {
 public:
  ConfigArguments(const CLI::App& program, const CLI::App& command, std::string path)
      : program_(program), command_(command), path_(std::move(path)) {}

  Result<std::vector<std::string>> read() {
    if (path_.empty()) return invalid_argument("--config: its value is empty");
    Result<std::string> read = read_small_file(path_);
    if (!read.ok()) return read.status().with_context("--config");
    const std::string& text = *read;
    auto entries_of = path_.ends_with(".ini") ? ini_entries : toml_entries;
    ASSIGN_OR_RETURN(std::vector<ConfigEntry> entries, entries_of(path_, text));
    for (const ConfigEntry& entry : entries) RETURN_IF_ERROR(add(entry));
    // A list takes the words behind it, too: those of no flag come first, and another flag ends the last one.
    if (!flags_.empty()) flags_.push_back("--config=" + path_);
    words_.insert(words_.end(), flags_.begin(), flags_.end());
    return std::move(words_);
  }

 private:
  Status add(const ConfigEntry& entry) {
    const CLI::App* place = find_command(program_, entry.section);
    if (place == nullptr)
      return unknown(entry, joined(entry.section, "."), "command", section_names(program_));
    if (entry.key.empty()) return ok_status();
    std::string name = entry.key;
    std::ranges::replace(name, '_', '-');
    if (leads_to(*place, command_))
      if (const CLI::Option* option = find_flag(command_, name)) return take(*option, name, entry);
    // In front of any section it has to be a flag of the command that runs.
    if (place == &program_) place = &command_;
    if (is_known(*place, name)) return ok_status();
    std::string whose = joined(path_of(*place), " ");
    if (!commands_below(*place).empty()) whose = format("any {} command", whose);
    return unknown(entry, entry.key, "flag of " + whose, key_names(*place));
  }

  Status take(const CLI::Option& option, const std::string& name, const ConfigEntry& entry) {
    if (option.count() > 0) return ok_status();  // the command line wins
    if (!seen_.insert(&option).second)
      return config_mistake(path_, entry.line, entry.key + " says a second time what a flag is");
    for (const std::string& value : entry.values) {
      if (option.get_positional()) {
        words_.push_back(value);
      } else if (option.get_items_expected_max() == 0) {  // a switch
        flags_.push_back("--" + name + "=" + value);
      } else {  // of "--name=" CLI11 would take the next word for the value
        flags_.insert(flags_.end(), {"--" + name, value});
      }
    }
    return ok_status();
  }

  Status unknown(const ConfigEntry& entry,
                 const std::string& word,
                 const std::string& what,
                 const std::vector<std::string>& known) const {
    const std::string near = close_match(word, known);
    std::string hint;
    if (near == word) {
      hint = " in a file, only on the command line";
    } else if (!near.empty()) {
      hint = "; the nearest is " + near;
    }
    return config_mistake(path_, entry.line, format("{} is no {}{}", word, what, hint));
  }

  const CLI::App& program_;
  const CLI::App& command_;
  std::string path_;
  std::set<const CLI::Option*> seen_;
  std::vector<std::string> words_;  // of no flag
  std::vector<std::string> flags_;
};

}  // namespace

Result<std::vector<std::string>> with_config_file(CLI::App& program,
                                                  const std::vector<std::string>& arguments) {
  bool mentioned = std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--config" || argument.rfind("--config=", 0) == 0;
  });
  if (!mentioned) return arguments;
  parse_quietly(program, arguments);
  CLI::App* command = chosen_command(program);
  const CLI::Option* config = command->get_option_no_throw("--config");
  if (config == nullptr || config->count() == 0) return arguments;
  if (config->count() > 1) return invalid_argument("--config is given twice");
  ASSIGN_OR_RETURN(std::vector<std::string> from_file,
                   ConfigArguments(program, *command, config->results().back()).read());
  std::vector<std::string> all = arguments;
  auto behind = std::find(all.begin(), all.end(), command->get_name());
  all.insert(behind == all.end() ? behind : behind + 1, from_file.begin(), from_file.end());
  return all;
}

}  // namespace llm_dist::launch
