// `llm-dist bench`: latency and throughput of the engine itself, without HTTP, and its parts alone, each
// beside what the machine could do; and a server under load.
#include "launch/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "src/text/utf8_stream.h"

namespace llm_dist::launch {

std::string typed_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command{std::istreambuf_iterator<char>(file), {}};
  std::replace(command.begin(), command.end(), '\0', ' ');
  std::string text;  // a path may be in any encoding, JSON is in UTF-8
  text::Utf8Stream utf8;
  utf8.push(std::string_view(command).substr(0, command.find_last_not_of(' ') + 1), text);
  utf8.flush(text);
  return text;
}

std::string run_environment(RankProcess& process) {
  const engine::EngineOptions& options = process.engine().options();
  nlohmann::json json = {{"model", process.checkpoint().path()},
                         {"tp", options.layout.tp},
                         {"pp", options.layout.pp},
                         {"device", process.device().backend->description()},
                         {"graph_sizes", options.graph_sizes},
                         {"max_num_batched_tokens", options.max_num_batched_tokens},
                         {"world_size", process.size()},
                         {"threads_per_rank", options.threads},
                         {"activations", std::string(to_string(options.dtype))},
                         {"command", typed_command()}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status save_result(const std::string& path, const std::string& json) {
  if (path.empty()) return ok_status();
  std::ofstream file(path);
  file << json << "\n";
  file.close();
  if (!file) return unavailable(format("--save-result {}: cannot be written", path));
  std::printf("saved %s\n", path.c_str());
  return ok_status();
}

std::string run_environment(RankProcess& process, const DrawFlags& draw) {
  nlohmann::json json = nlohmann::json::parse(run_environment(process));
  json["temperature"] = draw.temperature;
  json["top_p"] = draw.top_p;
  json["top_k"] = draw.top_k;
  return json.dump();
}

void add_result_flag(CLI::App& app, std::string& result_file) {
  app.add_option("--save-result", result_file, "Write the figures as JSON to this file");
}

void add_range_ratio_flag(CLI::App& app, double& ratio, const std::string& what) {
  app.add_option(
         "--random-range-ratio",
         ratio,
         what + " have evenly from (1 - this) to (1 + this) times --input-len tokens, on the mean as many")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
}

void make_room_for_batches(SchedulerFlags& scheduler, const std::vector<int>& batches) {
  scheduler.least_num_seqs = *std::max_element(batches.begin(), batches.end());
}

void add_load_flags(CLI::App& app, LoadFlags& flags) {
  add_engine_flags(app, flags.engine);
  flags.engine.log_level = "warning";
  app.add_option("--input-len,--random-input-len", flags.input_len, "Prompt tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_range_ratio_flag(app, flags.range_ratio);
  app.add_option("--output-len,--random-output-len", flags.output_len, "Generated tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_draw_flags(app, flags.draw);
  add_result_flag(app, flags.engine.result_file);
  app.add_option("--progress-file", flags.progress_file, "While it runs: tokens generated, and of how many");
}

RunCommand add_bench(CLI::App& program) {
  CLI::App* bench = program.add_subcommand("bench", "Measure the engine and its parts");
  bench->require_subcommand(1);
  std::vector<BenchCommand> commands = {add_bench_latency(*bench),
                                        add_bench_throughput(*bench),
                                        add_bench_serve(*bench),
                                        add_bench_kernels(*bench),
                                        add_bench_load(*bench),
                                        add_bench_comm(*bench)};
  return [commands] {
    for (const BenchCommand& command : commands) {
      if (command.app->parsed()) return command.run();
    }
    return 2;
  };
}

}  // namespace llm_dist::launch
