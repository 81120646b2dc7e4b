#include "launch/completion.h"
#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

// "/bench/latency"; the program itself is "".
std::string key_of(const CommandEntry& command) {
  std::string key;
  for (size_t i = 1; i < command.path.size(); ++i) key += "/" + command.path[i];
  return key;
}

std::string quoted(const std::string& text) { return "'" + text + "'"; }

// The words that a case of the shell compares with: '/serve --port' | '/serve --max-num-seqs'.
std::string pattern_of(const CommandEntry& command, const std::vector<std::string>& names) {
  std::vector<std::string> patterns;
  patterns.reserve(names.size());
  for (const std::string& name : names) patterns.push_back(quoted(key_of(command) + " " + name));
  return joined(patterns, " | ");
}

// What may follow each flag that takes a value.
std::string value_cases(const CommandEntry& command) {
  std::string text;
  std::vector<std::string> numbers, texts;
  for (const FlagGroup& group : command.groups) {
    for (const FlagEntry& flag : group.flags) {
      if (flag.kind == ValueKind::kChoice)
        text += format(
            "    {}) words={} ;;\n", pattern_of(command, flag.names), quoted(joined(flag.choices, " ")));
      std::vector<std::string>* list = flag.kind == ValueKind::kNumber ? &numbers
                                       : flag.kind == ValueKind::kText ? &texts
                                                                       : nullptr;
      if (list != nullptr) list->insert(list->end(), flag.names.begin(), flag.names.end());
    }
  }
  if (!numbers.empty()) text += format("    {}) return ;;\n", pattern_of(command, numbers));
  if (!texts.empty()) text += format("    {}) files=yes ;;\n", pattern_of(command, texts));
  return text;
}

// What may stand elsewhere in the command: flags, and words or files.
std::string command_case(const CommandEntry& command) {
  std::vector<std::string> flags, words;
  bool files = false;
  for (const FlagGroup& group : command.groups)
    for (const FlagEntry& flag : group.flags) flags.insert(flags.end(), flag.names.begin(), flag.names.end());
  for (const CommandEntry& sub : command.commands) words.push_back(sub.path.back());
  for (const FlagEntry& argument : command.arguments) {
    words.insert(words.end(), argument.choices.begin(), argument.choices.end());
    files |= argument.kind == ValueKind::kText;
  }
  std::string text =
      format("        {})\n          flags={}\n", quoted(key_of(command)), quoted(joined(flags, " ")));
  if (!words.empty()) text += format("          words={}\n", quoted(joined(words, " ")));
  if (files) text += "          files=yes\n";
  return text + "          ;;\n";
}

}  // namespace

std::string bash_completion(const CommandEntry& program) {
  std::vector<std::string> keys;
  std::string values, commands;
  for_each_command(program, [&](const CommandEntry& command) {
    if (command.path.size() > 1) keys.push_back(key_of(command));
    values += value_cases(command);
    commands += command_case(command);
  });
  return "# bash completion of llm-dist, written by `llm-dist completion bash`.\n"
         "_llm_dist() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
         "  local command='' flags='' words='' files='' i\n"
         "  COMPREPLY=()\n"
         "  # --flag=value comes as three words.\n"
         "  if [[ $current == = ]]; then\n"
         "    current=''\n"
         "  elif [[ $previous == = ]]; then\n"
         "    previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
         "  fi\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    case $command/${COMP_WORDS[i]} in\n"
         "      " +
         joined(keys, " | ") +
         ") command+=/${COMP_WORDS[i]} ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$command $previous\" in\n" +
         values +
         "    *)\n"
         "      case $command in\n" +
         commands +
         "      esac\n"
         "      ;;\n"
         "  esac\n"
         "  [[ $current != -* || -z $flags ]] || words=$flags files=''\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
         "  [[ -z $files ]] || compopt -o default 2>/dev/null\n"
         "}\n"
         "complete -F _llm_dist llm-dist\n";
}

}  // namespace llm_dist::launch
