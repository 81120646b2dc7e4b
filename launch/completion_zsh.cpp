#include "launch/completion.h"
#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

// For a specification of _arguments or _describe in single quotes.
std::string escaped(const std::string& text) {
  std::string out;
  for (char letter : text) {
    if (letter == '\'') {
      out += "'\\''";
    } else {
      if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') out += '\\';
      out += letter;
    }
  }
  return out;
}

std::string function_of(const CommandEntry& command) {
  std::string name;
  for (const std::string& word : command.path) name += "_" + word;
  for (char& letter : name)
    if (letter == '-') letter = '_';
  return name;
}

// ":INT: " and what completes it; empty for a switch.
std::string value_of(const FlagEntry& entry) {
  switch (entry.kind) {
    case ValueKind::kNone: return "";
    case ValueKind::kNumber: return format(":{}: ", escaped(entry.value_name));
    case ValueKind::kChoice: return format(":{}:({})", escaped(entry.value_name), joined(entry.choices, " "));
    case ValueKind::kText: return format(":{}:_files", escaped(entry.value_name));
  }
  return "";
}

// One specification a name: the names of a flag exclude each other.
std::string flag_lines(const FlagEntry& flag) {
  std::string text;
  for (const std::string& name : flag.names) {
    std::string before = flag.repeats ? "*" : format("({})", joined(flag.names, " "));
    bool is_long = name.rfind("--", 0) == 0;
    const char* after = flag.kind == ValueKind::kNone ? "" : is_long ? "=" : "+";
    text += format(" \\\n    '{}{}{}[{}]{}'", before, name, after, escaped(flag.help), value_of(flag));
  }
  return text;
}

std::string argument_line(const FlagEntry& argument, size_t position) {
  std::string value = argument.kind == ValueKind::kChoice ? format("({})", joined(argument.choices, " "))
                      : argument.kind == ValueKind::kText ? "_files"
                                                          : " ";
  std::string place = argument.repeats ? "*" : format("{}", position);
  return format(" \\\n    '{}:{}:{}'", place, escaped(argument.names.front()), value);
}

std::string arguments_call(const CommandEntry& command, const char* mode) {
  std::string text = format("  _arguments {}", mode);
  for (const FlagGroup& group : command.groups)
    for (const FlagEntry& flag : group.flags) text += flag_lines(flag);
  size_t position = 0;
  for (const FlagEntry& argument : command.arguments) text += argument_line(argument, ++position);
  return text;
}

// A command with others below it: the first word chooses, the rest is the chosen one's.
std::string branch_function(const CommandEntry& command) {
  std::string text = function_of(command) + "() {\n  local state line context\n  local -a commands\n";
  text += arguments_call(command, "-C");
  text += " \\\n    '1:command:->command' \\\n    '*::argument:->argument'\n  case $state in\n    command)\n";
  text += "      commands=(\n";
  for (const CommandEntry& sub : command.commands)
    text += format("        '{}:{}'\n", sub.path.back(), escaped(sub.help));
  text += "      )\n      _describe command commands\n      ;;\n    argument)\n      case $words[1] in\n";
  for (const CommandEntry& sub : command.commands)
    text += format("        {}) {} ;;\n", sub.path.back(), function_of(sub));
  return text + "      esac\n      ;;\n  esac\n}\n\n";
}

}  // namespace

std::string zsh_completion(const CommandEntry& program) {
  std::string text =
      "#compdef llm-dist\n"
      "# zsh completion of llm-dist, written by `llm-dist completion zsh`.\n\n";
  for_each_command(program, [&](const CommandEntry& command) {
    text += command.commands.empty()
                ? function_of(command) + "() {\n" + arguments_call(command, "") + "\n}\n\n"
                : branch_function(command);
  });
  // Found by compinit, the file is the body of a function _llm-dist; sourced, it declares what completes.
  std::string function = function_of(program);
  return text + "if [[ $funcstack[1] == _llm-dist ]]; then\n  " + function + " \"$@\"\nelse\n  compdef " +
         function + " llm-dist\nfi\n";
}

}  // namespace llm_dist::launch
