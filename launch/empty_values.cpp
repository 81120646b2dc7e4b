#include "launch/empty_values.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <string_view>

namespace llm_dist::launch {
namespace {

// Without them there would be a server that asks for no key or speaks no TLS, and no word of it.
constexpr std::string_view kNeverEmpty[] = {"--api-key", "--api-key-file", "--ssl-certfile", "--ssl-keyfile"};

bool is_switch(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// The command below `app` that the word names, or `app` itself.
const CLI::App& named(const CLI::App& app, const std::string& word) {
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!word.empty() && sub->get_name() == word) return *sub;
  return app;
}

// Calls `visit` for each word, with the option that it gives an empty value by "--x=", else nullptr.
void for_each_word(const CLI::App& program,
                   const std::vector<std::string>& arguments,
                   const std::function<void(const std::string& word, const CLI::Option* emptied)>& visit) {
  const CLI::App* command = &program;
  bool flags_ended = false;
  for (const std::string& word : arguments) {
    flags_ended = flags_ended || word == "--";
    bool emptied = !flags_ended && word.starts_with("--") && word.find('=') == word.size() - 1;
    visit(word, emptied ? command->get_option_no_throw(word.substr(0, word.size() - 1)) : nullptr);
    command = &named(*command, word);
  }
}

bool wants_a_value(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.find("INT") != type.npos || type.find("FLOAT") != type.npos ||
         std::ranges::find(kNeverEmpty, option.get_name()) != std::end(kNeverEmpty);
}

void refuse(const CLI::Option& option) {
  throw CLI::ValidationError(option.get_name(), "its value is empty");
}

void refuse_empty_results(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (wants_a_value(*option) && std::ranges::count(option->results(), "") > 0) refuse(*option);
  const auto all = [](const CLI::App*) { return true; };  // groups of options among them
  for (const CLI::App* command : app.get_subcommands(all)) refuse_empty_results(*command);
}

}  // namespace

std::vector<std::string> with_empty_values(const CLI::App& program,
                                           const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  for_each_word(program, arguments, [&](const std::string& word, const CLI::Option* emptied) {
    if (emptied == nullptr || is_switch(*emptied)) {
      words.push_back(word);
    } else {
      words.push_back(word.substr(0, word.size() - 1));
      words.emplace_back();
    }
  });
  return words;
}

void refuse_empty_values(const CLI::App& program, const std::vector<std::string>& arguments) {
  for_each_word(program, arguments, [](const std::string&, const CLI::Option* emptied) {
    if (emptied != nullptr && is_switch(*emptied)) refuse(*emptied);
  });
  refuse_empty_results(program);
}

}  // namespace llm_dist::launch
