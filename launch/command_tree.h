// What the program's parser knows, as plain data: its commands, their flags and arguments. Completions and
// man pages are written from it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace llm_dist::launch {

enum class ValueKind { kNone, kNumber, kChoice, kText };

struct FlagEntry {
  std::vector<std::string> names;  // as typed: "-f", "--follow"; an argument's name without dashes
  std::string help;
  ValueKind kind = ValueKind::kNone;
  std::string value_name;            // "TEXT", "INT"; empty for kNone
  std::vector<std::string> choices;  // of kChoice
  std::string default_value;         // empty: none is told
  bool required = false;
  bool repeats = false;  // takes several values
};

struct FlagGroup {
  std::string title;  // empty: the command's own
  std::vector<FlagEntry> flags;
};

struct CommandEntry {
  std::vector<std::string> path;  // "llm-dist", "bench", "latency"
  std::string help;
  std::string footer;  // its own, not one that it took over from the command above
  std::vector<FlagEntry> arguments;
  std::vector<FlagGroup> groups;
  std::vector<CommandEntry> commands;  // without hidden ones
};

// What is typed for a flag that CLI11 knows by another name: it refuses short names of two letters, and users
// of other servers type them.
struct ShortName {
  const char* typed;
  const char* name;
};
inline constexpr ShortName kShortNames[] = {{"-tp", "--tp"}, {"-pp", "--pp"}};

// The whole tree below `program`, itself included.
CommandEntry describe(const CLI::App& program);

// Calls `visit` for `command` and every command below it, a command before those below it.
void for_each_command(const CommandEntry& command, const std::function<void(const CommandEntry&)>& visit);

std::string joined(const std::vector<std::string>& words, const std::string& separator);

}  // namespace llm_dist::launch
