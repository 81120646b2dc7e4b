// `llm-dist bench`: its subcommands, each a file, and what they share.
#pragma once

#include <string>

#include "launch/commands.h"
#include "launch/flags.h"
#include "launch/rank_process.h"
#include "launch/sampling_flags.h"

namespace llm_dist::launch {

struct BenchCommand {
  CLI::App* app = nullptr;
  RunCommand run;
};
BenchCommand add_bench_latency(CLI::App& bench);
BenchCommand add_bench_throughput(CLI::App& bench);
BenchCommand add_bench_comm(CLI::App& bench);
BenchCommand add_bench_kernels(CLI::App& bench);
BenchCommand add_bench_load(CLI::App& bench);
BenchCommand add_bench_serve(CLI::App& bench);

// Of the subcommands that load a model and run prompts.
struct LoadFlags {
  EngineFlags engine;
  int input_len = 128;
  double range_ratio = 0;  // of input_len: RandomLengths
  int output_len = 128;
  DrawFlags draw;
  std::string progress_file;
};
void add_load_flags(CLI::App& app, LoadFlags& flags);
// --random-range-ratio. `what` is as long as it says: the beginning of the help.
void add_range_ratio_flag(CLI::App& app, double& ratio, const std::string& what = "Prompts");
void add_result_flag(CLI::App& app, std::string& result_file);
// Lets a step have all sequences of the largest batch.
void make_room_for_batches(SchedulerFlags& scheduler, const std::vector<int>& batches);

// Model, layout, device and command line, as every result names them: a JSON object.
std::string run_environment(RankProcess& process);
// The same with how tokens are drawn.
std::string run_environment(RankProcess& process, const DrawFlags& draw);
// This process's command line, as it was typed.
std::string typed_command();
// Writes `json`, if --save-result named a file.
Status save_result(const std::string& path, const std::string& json);

}  // namespace llm_dist::launch
