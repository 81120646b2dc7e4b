// llm-dist: one program; what it does is its first argument.
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank_discovery.h"
#include "launch/command_tree.h"
#include "launch/commands.h"
#include "launch/config_file.h"
#include "launch/empty_values.h"
#include "launch/flag_errors.h"
#include "launch/shell_help.h"
#include "launch/thread_waits.h"
#include "src/base/exit_code.h"
#include "src/base/log_format.h"

namespace {

std::vector<std::string> rewritten_arguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    size_t equals = argument.find('=');
    const std::string word = argument.substr(0, equals);
    for (const auto& [typed, name] : llm_dist::launch::kShortNames) {
      if (word == typed) argument = name + (equals == std::string::npos ? "" : argument.substr(equals));
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

// Where a standard stream is closed, the first file that is opened would take its number, and what is printed
// would go there.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", O_RDWR);
}

// Words behind a list that has commas are not the list's: the model may stand there.
void end_lists_with_their_word(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_delimiter() != '\0') option->allow_extra_args(false);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    end_lists_with_their_word(*command);
}

// No check of a range refuses it.
void refuse_nan(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_type_name().find("FLOAT") == std::string::npos) continue;
    for (const std::string& word : option->results())
      if (std::isnan(std::strtod(word.c_str(), nullptr)))
        throw CLI::ValidationError(option->get_name(), word + " is not a number");
  }
  const auto all = [](const CLI::App*) { return true; };  // groups of options among them
  for (const CLI::App* command : app.get_subcommands(all)) refuse_nan(*command);
}

// What was printed and did not arrive is no success.
int after_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (code == 0) std::perror("llm-dist: standard output");
  return code == 0 ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
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
  end_lists_with_their_word(program);
  std::vector<std::string> arguments =
      llm_dist::launch::with_empty_values(program, rewritten_arguments(argc, argv));
  auto all = llm_dist::launch::with_config_file(program, arguments);
  if (!all.ok()) {
    if (!leads_world()) return after_the_leader(llm_dist::kRefusedExitCode);
    llm_dist::announce(all.status().message());
    return llm_dist::kRefusedExitCode;
  }
  try {
    // CLI11 takes the last one first.
    program.parse(std::vector<std::string>(all->rbegin(), all->rend()));
    llm_dist::launch::refuse_empty_values(program, *all);
    refuse_nan(program);
  } catch (const CLI::ParseError& error) {
    // Every rank reads the same arguments: one of them says what is wrong.
    if (!leads_world()) return after_the_leader(error.get_exit_code());
    if (error.get_exit_code() == 0) return after_output(program.exit(error));  // --help, --version
    std::cerr << llm_dist::launch::flag_error(program, error, arguments);
    return error.get_exit_code();
  }
  try {
    for (const CLI::App* chosen : program.get_subcommands())
      return after_output(commands.at(chosen->get_name())());
  } catch (const std::exception& error) {
    llm_dist::announce(error.what());
    return 1;
  }
  return 2;
}
