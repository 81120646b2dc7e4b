#include "launch/config_file.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <set>

#include "launch/near_words.h"
#include "src/base/nearest.h"

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

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_name().empty()) continue;
    names.push_back(sub->get_name());
    for (std::string& inner : command_names(*sub)) names.push_back(std::move(inner));
  }
  return names;
}

class ConfigArguments {
 public:
  ConfigArguments(CLI::App& program, CLI::App& command, std::string path)
      : commands_(command_names(program)), command_(command), path_(std::move(path)) {}

  Result<std::vector<std::string>> read() {
    std::ifstream file(path_);
    if (!file) return not_found(format("--config {} cannot be read", path_));
    std::vector<CLI::ConfigItem> items;
    try {
      items = CLI::ConfigTOML().from_config(file);
    } catch (const CLI::Error& error) {
      return invalid_argument(format("--config {}: {}", path_, error.what()));
    }
    for (const CLI::ConfigItem& item : items) RETURN_IF_ERROR(add(item));
    return std::move(arguments_);
  }

 private:
  // CLI11 marks the begin and end of a section with items of these names.
  static bool is_marker(const CLI::ConfigItem& item) { return item.name == "++" || item.name == "--"; }

  Status add(const CLI::ConfigItem& item) {
    const std::string section = item.parents.empty() ? "" : item.parents.back();
    if (!section.empty() && section != command_.get_name()) return check_section(section);
    if (is_marker(item)) return ok_status();
    std::string name = item.name;
    std::replace(name.begin(), name.end(), '_', '-');
    const CLI::Option* option = find(name);
    if (option == nullptr) return unknown("flag of " + command_.get_name(), item.name, flag_names());
    if (option->count() > 0) return ok_status();  // the command line wins
    if (!seen_.insert(option).second)
      return invalid_argument(format("--config {}: {} says a second time what a flag is", path_, item.name));
    for (const std::string& input : item.inputs)
      arguments_.push_back(option->get_positional() ? input : "--" + name + "=" + input);
    return ok_status();
  }

  const CLI::Option* find(const std::string& name) const {
    if (name == "help" || name == "config") return nullptr;
    const CLI::Option* flag = command_.get_option_no_throw("--" + name);
    if (flag != nullptr) return flag;
    const CLI::Option* positional = command_.get_option_no_throw(name);
    return positional != nullptr && positional->get_positional() ? positional : nullptr;
  }

  std::vector<std::string> flag_names() const {
    std::vector<std::string> names;
    for (const std::string& flag : known_flags(command_)) names.push_back(flag.substr(2));
    for (const CLI::Option* option : command_.get_options())
      if (option->get_positional()) names.push_back(option->get_name(true));
    return names;
  }

  Status check_section(const std::string& section) const {
    bool known = std::find(commands_.begin(), commands_.end(), section) != commands_.end();
    return known ? ok_status() : unknown("command", section, commands_);
  }

  Status unknown(const std::string& what,
                 const std::string& word,
                 const std::vector<std::string>& known) const {
    std::vector<std::string_view> words(known.begin(), known.end());
    return invalid_argument(
        format("--config {}: {} is no {}; the nearest is {}", path_, word, what, nearest_word(word, words)));
  }

  std::vector<std::string> commands_;
  CLI::App& command_;
  std::string path_;
  std::set<const CLI::Option*> seen_;
  std::vector<std::string> arguments_;
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
  // A list takes the words behind it, too: another flag ends it, so that it does not take the model.
  if (!from_file.empty()) from_file.push_back("--config=" + config->results().back());
  all.insert(behind == all.end() ? behind : behind + 1, from_file.begin(), from_file.end());
  return all;
}

}  // namespace llm_dist::launch
