// llm-dist: one program; what it does is its first argument.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank_discovery.h"
#include "launch/commands.h"
#include "launch/config_file.h"
#include "launch/flag_errors.h"
#include "launch/shell_help.h"
#include "launch/thread_waits.h"
#include "src/base/exit_code.h"
#include "src/base/log_format.h"

namespace {

// CLI11 refuses short names of two letters; users of other servers type them.
std::vector<std::string> rewritten_arguments(int argc, char** argv) {
  const std::map<std::string, std::string> kAliases = {{"-tp", "--tp"}, {"-pp", "--pp"}};
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    size_t equals = argument.find('=');
    auto alias = kAliases.find(argument.substr(0, equals));
    if (alias != kAliases.end()) {
      argument = alias->second + (equals == std::string::npos ? "" : argument.substr(equals));
    }
    arguments.push_back(argument);
  }
  return arguments;
}

bool leads_world() {
  auto info = llm_dist::comm::discover_ranks({}, llm_dist::comm::read_environment());
  return !info.ok() || info->rank == 0;
}

// mpirun ends every rank as soon as one has failed: the one that speaks goes first.
int after_the_leader(int code) {
  if (code != 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  llm_dist::launch::bound_thread_waits(argv);
  CLI::App program{
      "Distributed inference of large language models: ranks started by mpirun or Slurm share one model."};
  program.name("llm-dist");
  program.set_version_flag("--version", std::string("llm-dist ") + LLM_DIST_VERSION);
  program.require_subcommand(1);
  program.footer(
      "Examples:\n"
      "  llm-dist generate model.gguf --prompt 'Once upon a time'\n"
      "  mpirun -np 2 llm-dist serve model.gguf --tp 2\n"
      "  llm-dist chat --base-url http://127.0.0.1:8000\n"
      "  llm-dist plan path/to/Llama-3.1-8B --tp 4 --memory 80GiB\n"
      "  llm-dist bench latency model.gguf --batch 1,8 --input-len 128 --output-len 64\n"
      "Each command has a --help of its own.");
  std::map<std::string, llm_dist::launch::RunCommand> commands = {
      {"serve", llm_dist::launch::add_serve(program)},
      {"generate", llm_dist::launch::add_generate(program)},
      {"chat", llm_dist::launch::add_chat(program)},
      {"bench", llm_dist::launch::add_bench(program)},
      {"plan", llm_dist::launch::add_plan(program)},
      {"convert", llm_dist::launch::add_convert(program)},
      {"doctor", llm_dist::launch::add_doctor(program)},
      {"coordinator", llm_dist::launch::add_coordinator(program)},
      {"keep", llm_dist::launch::add_keep(program)},
      {"submit", llm_dist::launch::add_submit(program)},
      {"jobs", llm_dist::launch::add_jobs(program)},
      {"logs", llm_dist::launch::add_logs(program)},
      {"cancel", llm_dist::launch::add_cancel(program)},
      {"top", llm_dist::launch::add_top(program)},
      {"completion", llm_dist::launch::add_completion(program)},
      {"man", llm_dist::launch::add_man(program)},
  };
  std::vector<std::string> arguments = rewritten_arguments(argc, argv);
  auto all = llm_dist::launch::with_config_file(program, arguments);
  if (!all.ok()) {
    if (!leads_world()) return after_the_leader(llm_dist::kRefusedExitCode);
    llm_dist::announce(all.status().message());
    return llm_dist::kRefusedExitCode;
  }
  try {
    // CLI11 takes the last one first.
    program.parse(std::vector<std::string>(all->rbegin(), all->rend()));
  } catch (const CLI::ParseError& error) {
    // Every rank reads the same arguments: one of them says what is wrong.
    if (!leads_world()) return after_the_leader(error.get_exit_code());
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    std::cerr << llm_dist::launch::flag_error(program, error, arguments);
    return error.get_exit_code();
  }
  for (const CLI::App* chosen : program.get_subcommands()) return commands.at(chosen->get_name())();
  return 2;
}
