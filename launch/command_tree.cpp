#include "launch/command_tree.h"

#include <CLI/CLI.hpp>

namespace llm_dist::launch {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// CLI11 tells a value's type and checks in one text: "INT:POSITIVE", "TEXT:{auto,cpu,cuda}".
void read_type(const std::string& type, FlagEntry& entry) {
  entry.value_name = type.substr(0, type.find(':'));
  size_t open = type.find('{'), close = type.rfind('}');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    entry.kind = ValueKind::kChoice;
    entry.choices = split(type.substr(open + 1, close - open - 1), ',');
  } else if (entry.value_name == "INT" || entry.value_name == "UINT" || entry.value_name == "FLOAT") {
    entry.kind = ValueKind::kNumber;
  } else {
    entry.kind = ValueKind::kText;
  }
}

FlagEntry entry_of(const CLI::Option& option) {
  FlagEntry entry;
  entry.help = option.get_description();
  entry.default_value = option.get_default_str();
  entry.required = option.get_required();
  if (option.get_items_expected_max() == 0) return entry;  // a switch
  entry.repeats = option.get_items_expected_max() > 1;
  read_type(option.get_type_name(), entry);
  return entry;
}

std::vector<std::string> typed_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

// The options of `app`, which is a command or a group of one, and of the groups in it.
void add_options(const CLI::App& app, const std::string& title, CommandEntry& command) {
  FlagGroup group{.title = title};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    // A group carries the --help of its command once more.
    if (option == app.get_help_ptr() && app.get_name().empty()) continue;
    FlagEntry entry = entry_of(*option);
    entry.names = typed_names(*option);
    if (!entry.names.empty()) group.flags.push_back(entry);
    // The same option may be an argument too.
    if (!option->get_positional()) continue;
    entry.names = {option->get_name(true)};
    command.arguments.push_back(entry);
  }
  if (!group.flags.empty()) command.groups.push_back(std::move(group));
  for (const CLI::App* inner :
       app.get_subcommands([](const CLI::App* sub) { return sub->get_name().empty(); }))
    add_options(*inner, inner->get_group(), command);
}

CommandEntry command_of(const CLI::App& app, std::vector<std::string> path) {
  CommandEntry command;
  command.path = std::move(path);
  command.path.push_back(app.get_name());
  command.help = app.get_description();
  // CLI11 hands a footer on to the commands below.
  if (app.get_parent() == nullptr || app.get_parent()->get_footer() != app.get_footer())
    command.footer = app.get_footer();
  add_options(app, "", command);
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App* candidate) {
         return !candidate->get_name().empty() && !candidate->get_group().empty();
       }))
    command.commands.push_back(command_of(*sub, command.path));
  return command;
}

}  // namespace

CommandEntry describe(const CLI::App& program) { return command_of(program, {}); }

void for_each_command(const CommandEntry& command, const std::function<void(const CommandEntry&)>& visit) {
  visit(command);
  for (const CommandEntry& sub : command.commands) for_each_command(sub, visit);
}

std::string joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

}  // namespace llm_dist::launch
