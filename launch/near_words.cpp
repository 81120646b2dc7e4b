#include "launch/near_words.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "src/base/nearest.h"

namespace llm_dist::launch {

std::string close_match(const std::string& word, const std::vector<std::string>& known) {
  std::vector<std::string_view> words(known.begin(), known.end());
  return std::string(near_word(word, words));
}

std::vector<std::string> known_flags(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* group :
       app.get_subcommands([](const CLI::App* sub) { return sub->get_name().empty(); })) {
    for (std::string& name : known_flags(*group)) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace llm_dist::launch
