#include "launch/man_page.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <sstream>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

// roff has no UTF-8: the code point that starts at `text[i]`, which is moved to its last byte.
uint32_t code_point(const std::string& text, size_t& i) {
  auto byte = [&](size_t at) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at])); };
  uint32_t first = byte(i);
  size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  uint32_t value = first & (0x3fU >> more);
  for (; more > 0 && i + 1 < text.size(); --more) value = value << 6 | (byte(++i) & 0x3fU);
  return value;
}

// Text as roff shows it unchanged. A minus stays one that can be copied, a leading dot is no request.
std::string escaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    char letter = text[i];
    if ((letter == '.' || letter == '\'') && (i == 0 || text[i - 1] == '\n')) out += "\\&";
    if (letter == '\\') {
      out += "\\e";
    } else if (letter == '-') {
      out += "\\-";
    } else if (letter == '\'') {
      out += "\\(aq";
    } else if (static_cast<unsigned char>(letter) >= 0x80) {
      char hex[16];
      std::snprintf(hex, sizeof(hex), "\\[u%04X]", code_point(text, i));
      out += hex;
    } else {
      out += letter;
    }
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// "model…", "[job]".
std::string argument_text(const FlagEntry& argument) {
  std::string text = italic(argument.names.front()) + (argument.repeats ? "..." : "");
  return argument.required ? text : "[" + text + "]";
}

std::string synopsis(const CommandEntry& command) {
  std::string text = ".SH SYNOPSIS\n.nh\n" + bold(joined(command.path, " ")) + " [" + italic("options") + "]";
  if (!command.commands.empty()) text += " " + italic("command");
  for (const FlagEntry& argument : command.arguments) text += " " + argument_text(argument);
  return text + "\n.hy\n";
}

std::string sentence(const std::string& text) { return escaped(text) + (text.back() == '.' ? "\n" : ".\n"); }

std::string entry_text(const FlagEntry& entry, bool is_flag) {
  std::vector<std::string> names;
  names.reserve(entry.names.size());
  for (const std::string& name : entry.names) names.push_back(is_flag ? bold(name) : italic(name));
  std::string text = ".TP\n" + joined(names, ", ");
  if (is_flag && entry.kind != ValueKind::kNone)
    text += " " + italic(entry.value_name) + (entry.repeats ? "..." : "");
  text += "\n";
  if (!entry.help.empty()) text += sentence(entry.help);
  std::string choices = joined(entry.choices, ", ");
  if (entry.help.find(choices) == std::string::npos) text += sentence("One of " + choices);
  if (!entry.default_value.empty()) text += sentence("Default: " + entry.default_value);
  if (is_flag && entry.required) text += sentence("Must be given");
  return text;
}

std::string options(const CommandEntry& command) {
  std::string text = ".SH OPTIONS\n";
  for (const FlagGroup& group : command.groups) {
    if (!group.title.empty()) text += format(".SS {}\n", escaped(group.title));
    for (const FlagEntry& flag : group.flags) text += entry_text(flag, true);
  }
  return text;
}

std::string commands(const CommandEntry& command) {
  std::string text = ".SH COMMANDS\n";
  for (const CommandEntry& sub : command.commands)
    text += format(".TP\n{}(1)\n{}", bold(page_name(sub)), sentence(sub.help));
  return text;
}

// A footer is "Examples:" and a command a line, "Example: COMMAND", or words.
std::string examples(const std::string& footer) {
  std::string text = ".SH EXAMPLES\n.nf\n";
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) {
    for (const char* prefix : {"Examples:", "Example:"})
      if (line.rfind(prefix, 0) == 0) line.erase(0, std::string(prefix).size());
    line.erase(0, line.find_first_not_of(' '));
    if (!line.empty()) text += escaped(line) + "\n";
  }
  return text + ".fi\n";
}

// The commands beside this one, above and below it.
std::string see_also(const CommandEntry& program, const CommandEntry& command) {
  std::vector<std::string> pages;
  for_each_command(program, [&](const CommandEntry& other) {
    if (other.path == command.path) return;
    bool above = other.path.size() < command.path.size() &&
                 std::equal(other.path.begin(), other.path.end(), command.path.begin());
    bool beside = other.path.size() == command.path.size() &&
                  std::equal(other.path.begin(), other.path.end() - 1, command.path.begin());
    bool below = other.path.size() == command.path.size() + 1 &&
                 std::equal(command.path.begin(), command.path.end(), other.path.begin());
    if (above || beside || below) pages.push_back(bold(page_name(other)) + "(1)");
  });
  return ".SH SEE ALSO\n.nh\n" + joined(pages, ",\n") + "\n.hy\n";
}

}  // namespace

std::string page_name(const CommandEntry& command) { return joined(command.path, "-"); }

std::string man_page(const CommandEntry& program, const CommandEntry& command, const std::string& version) {
  std::string name = page_name(command);
  std::string text = format(".TH {} 1 \"\" \"llm-dist {}\" \"llm-dist\"\n", upper(name), version);
  text += format(".SH NAME\n{} \\- {}\n", escaped(name), escaped(command.help));
  text += synopsis(command);
  if (!command.arguments.empty()) text += ".SH ARGUMENTS\n";
  for (const FlagEntry& argument : command.arguments) text += entry_text(argument, false);
  text += options(command);
  if (!command.commands.empty()) text += commands(command);
  if (!command.footer.empty()) text += examples(command.footer);
  return text + see_also(program, command);
}

}  // namespace llm_dist::launch
