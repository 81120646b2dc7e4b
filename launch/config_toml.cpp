// The only file that knows toml++.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>

#include "launch/config_entries.h"
#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

// As it is typed: a whole one keeps its point, for a flag that counts is not given by 2.0.
std::string text_of(double number) {
  char buffer[32];
  std::string text(buffer, std::to_chars(buffer, std::end(buffer), number).ptr);
  bool whole = text.find_first_not_of("-0123456789") == text.npos;
  return whole ? text + ".0" : text;
}

std::string name_of(toml::node_type type) {
  switch (type) {
    case toml::node_type::table: return "an inline table";
    case toml::node_type::array: return "a list in a list";
    case toml::node_type::date: return "a date";
    case toml::node_type::time: return "a time of day";
    default: return "a date with a time";
  }
}

class TomlEntries {
 public:
  explicit TomlEntries(std::string path) : path_(std::move(path)) {}

  Status add_table(const std::vector<std::string>& section, const toml::table& table) {
    for (auto&& [key, node] : table) {
      int line = static_cast<int>(key.source().begin.line);
      if (key.empty()) return config_mistake(path_, line, "a key is empty");
      const toml::table* inner = node.as_table();
      if (inner != nullptr && !inner->is_inline()) {
        std::vector<std::string> below = section;
        below.emplace_back(key.str());
        entries_.push_back({.section = below, .line = line});
        RETURN_IF_ERROR(add_table(below, *inner));
        continue;
      }
      ConfigEntry entry{.section = section, .key = std::string(key.str()), .line = line};
      RETURN_IF_ERROR(add_values(node, entry));
      entries_.push_back(std::move(entry));
    }
    return ok_status();
  }

  std::vector<ConfigEntry> in_order() && {
    std::ranges::stable_sort(entries_, {}, &ConfigEntry::line);
    return std::move(entries_);
  }

 private:
  Status add_values(const toml::node& node, ConfigEntry& entry) const {
    const toml::array* list = node.as_array();
    if (list == nullptr) return add_value(node, entry);
    for (const toml::node& element : *list) {
      if (const toml::table* table = element.as_table(); table != nullptr && !table->is_inline())
        return config_mistake(path_, entry.line, format("[[{}]] would be a list of sections", entry.key));
      RETURN_IF_ERROR(add_value(element, entry));
    }
    return ok_status();
  }

  Status add_value(const toml::node& node, ConfigEntry& entry) const {
    if (const auto* text = node.as_string()) {
      entry.values.push_back(text->get());
    } else if (const auto* whole = node.as_integer()) {
      entry.values.push_back(std::to_string(whole->get()));
    } else if (const auto* number = node.as_floating_point()) {
      entry.values.push_back(text_of(number->get()));
    } else if (const auto* yes = node.as_boolean()) {
      entry.values.emplace_back(yes->get() ? "true" : "false");
    } else {
      return config_mistake(
          path_, entry.line, format("{}: {} is no flag's value", entry.key, name_of(node.type())));
    }
    return ok_status();
  }

  std::string path_;
  std::vector<ConfigEntry> entries_;
};

}  // namespace

Result<std::vector<ConfigEntry>> toml_entries(const std::string& path, const std::string& text) {
  toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return config_mistake(
        path, static_cast<int>(error.source().begin.line), std::string(error.description()));
  }
  TomlEntries entries(path);
  RETURN_IF_ERROR(entries.add_table({}, parsed.table()));
  return std::move(entries).in_order();
}

}  // namespace llm_dist::launch
