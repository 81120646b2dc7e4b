// The subcommands. Each adds its flags to the program's parser and returns the function that runs it;
// main.cpp lists them.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace llm_dist::launch {

// The exit code of the process.
using RunCommand = std::function<int()>;

RunCommand add_serve(CLI::App& program);
RunCommand add_generate(CLI::App& program);
RunCommand add_chat(CLI::App& program);
RunCommand add_bench(CLI::App& program);
RunCommand add_plan(CLI::App& program);
RunCommand add_convert(CLI::App& program);
RunCommand add_doctor(CLI::App& program);
RunCommand add_coordinator(CLI::App& program);
RunCommand add_keep(CLI::App& program);
RunCommand add_submit(CLI::App& program);
RunCommand add_jobs(CLI::App& program);
RunCommand add_logs(CLI::App& program);
RunCommand add_cancel(CLI::App& program);
RunCommand add_top(CLI::App& program);

}  // namespace llm_dist::launch
