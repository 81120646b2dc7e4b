#include <sstream>

#include "launch/config_entries.h"
#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

std::string trimmed(const std::string& text) {
  size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == text.npos ? "" : text.substr(begin, end - begin + 1);
}

std::string unquoted(const std::string& text) {
  bool quoted =
      text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.front() == text.back();
  return quoted ? text.substr(1, text.size() - 2) : text;
}

// "bench.latency", of a line [bench.latency].
std::vector<std::string> section_of(const std::string& name) {
  std::vector<std::string> section;
  std::istringstream words(name);
  for (std::string word; std::getline(words, word, '.');) section.push_back(unquoted(trimmed(word)));
  return section;
}

}  // namespace

Result<std::vector<ConfigEntry>> ini_entries(const std::string& path, const std::string& text) {
  std::vector<ConfigEntry> entries;
  std::vector<std::string> section;
  std::istringstream lines(text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = trimmed(line);
    if (line.empty() || line.front() == ';' || line.front() == '#') continue;
    if (line.front() == '[') {
      section = section_of(line.substr(1, line.size() - 2));
      if (line.back() != ']' || section.empty())
        return config_mistake(path, number, format("{} is no [section]", line));
      entries.push_back({.section = section, .line = number});
      continue;
    }
    size_t equals = line.find('=');
    if (equals == line.npos || equals == 0)
      return config_mistake(path, number, format("{} is no key = value", line));
    std::string key = trimmed(line.substr(0, equals)), value = trimmed(line.substr(equals + 1));
    if (value.starts_with('['))
      return config_mistake(path, number, format("{}: lists are for TOML, in a file of another name", key));
    entries.push_back({.section = section, .key = key, .values = {unquoted(value)}, .line = number});
  }
  return entries;
}

}  // namespace llm_dist::launch
