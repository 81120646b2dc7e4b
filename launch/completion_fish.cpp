#include "launch/completion.h"
#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char letter : text) {
    if (letter == '\'' || letter == '\\') out += '\\';
    out += letter;
  }
  return out + "'";
}

// "/bench/latency/"; the program itself is "/".
std::string key_of(const CommandEntry& command) {
  std::string key = "/";
  for (size_t i = 1; i < command.path.size(); ++i) key += command.path[i] + "/";
  return key;
}

std::string line_start(const CommandEntry& command) {
  return format("complete -c llm-dist -n 'test (__llm_dist_command) = {}'", key_of(command));
}

std::string value_of(const FlagEntry& entry) {
  switch (entry.kind) {
    case ValueKind::kNone: return " -f";
    case ValueKind::kNumber: return " -x";
    case ValueKind::kChoice: return " -x -a " + quoted(joined(entry.choices, " "));
    case ValueKind::kText: return " -r -F";
  }
  return "";
}

std::string flag_line(const CommandEntry& command, const FlagEntry& flag) {
  std::string text = line_start(command);
  for (const std::string& name : flag.names)
    text += name.rfind("--", 0) == 0 ? " -l " + name.substr(2) : " -s " + name.substr(1);
  return text + value_of(flag) + " -d " + quoted(flag.help) + "\n";
}

std::string command_lines(const CommandEntry& command) {
  std::string text;
  bool files = false;
  for (const CommandEntry& sub : command.commands)
    text += format("{} -f -a {} -d {}\n", line_start(command), sub.path.back(), quoted(sub.help));
  for (const FlagGroup& group : command.groups)
    for (const FlagEntry& flag : group.flags) text += flag_line(command, flag);
  for (const FlagEntry& argument : command.arguments) {
    if (argument.kind == ValueKind::kChoice)
      text += format("{} -f -a {}\n", line_start(command), quoted(joined(argument.choices, " ")));
    files |= argument.kind == ValueKind::kText;
  }
  if (!files) text += line_start(command) + " -f\n";
  return text;
}

}  // namespace

std::string fish_completion(const CommandEntry& program) {
  std::vector<std::string> keys;
  std::string lines;
  for_each_command(program, [&](const CommandEntry& command) {
    if (command.path.size() > 1) keys.push_back(key_of(command));
    lines += command_lines(command);
  });
  return "# fish completion of llm-dist, written by `llm-dist completion fish`.\n"
         "function __llm_dist_command\n"
         "    set -l command /\n"
         "    for word in (commandline -opc)[2..-1]\n"
         "        switch $command$word/\n"
         "            case " +
         joined(keys, " ") +
         "\n"
         "                set command $command$word/\n"
         "        end\n"
         "    end\n"
         "    echo $command\n"
         "end\n\n" +
         lines;
}

}  // namespace llm_dist::launch
