#include "launch/shell_help.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "launch/completion.h"
#include "launch/man_page.h"
#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

struct ManFlags {
  std::vector<std::string> command;
  std::string output_dir;
};

int print(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? 0 : 1;
}

int print_completion(const CLI::App& program, const std::string& shell) {
  CommandEntry tree = describe(program);
  if (shell == "zsh") return print(zsh_completion(tree));
  return print(shell == "fish" ? fish_completion(tree) : bash_completion(tree));
}

int write_pages(const CommandEntry& tree, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  bool written = true;
  for_each_command(tree, [&](const CommandEntry& command) {
    std::ofstream file(folder + "/" + page_name(command) + ".1");
    file << man_page(tree, command, LLM_DIST_VERSION);
    file.close();
    written = written && file.good();
  });
  if (!written) std::fprintf(stderr, "llm-dist: %s cannot be written\n", folder.c_str());
  return written ? 0 : 1;
}

int run_man(const CLI::App& program, const ManFlags& flags) {
  CommandEntry tree = describe(program);
  if (!flags.output_dir.empty()) return write_pages(tree, flags.output_dir);
  std::vector<std::string> path = {tree.path.front()};
  path.insert(path.end(), flags.command.begin(), flags.command.end());
  int code = -1;
  for_each_command(tree, [&](const CommandEntry& command) {
    if (command.path == path) code = print(man_page(tree, command, LLM_DIST_VERSION));
  });
  if (code >= 0) return code;
  std::fprintf(stderr, "llm-dist: there is no command %s\n", joined(flags.command, " ").c_str());
  return 1;
}

}  // namespace

RunCommand add_completion(CLI::App& program) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app = program.add_subcommand("completion", "Print a script that completes this program's flags");
  app->add_option("shell", *shell, "Whose script")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  app->footer(
      "Examples:\n"
      "  source <(llm-dist completion bash)\n"
      "  llm-dist completion fish | source");
  return [&program, shell] { return print_completion(program, *shell); };
}

RunCommand add_man(CLI::App& program) {
  auto flags = std::make_shared<ManFlags>();
  CLI::App* app = program.add_subcommand("man", "Print the man page of a command, in roff");
  app->group("");  // in no list of commands
  app->add_option("command", flags->command, "The command's words, for example bench latency");
  app->add_option("--output-dir", flags->output_dir, "Write the pages of all commands to this folder");
  app->footer("Example: llm-dist man serve | man -l -");
  return [&program, flags] { return run_man(program, *flags); };
}

}  // namespace llm_dist::launch
