// `llm-dist bench throughput`: many requests at once, until the last one ends.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/engine_bench.h"
#include "launch/random_lengths.h"

namespace llm_dist::launch {
namespace {

constexpr int kWarmUpTokens = 4;

struct ThroughputFlags {
  LoadFlags load;
  int num_prompts = 64;
};

Status throughput(const ThroughputFlags& flags, RankProcess& process) {
  EngineBench bench(flags.load, process, kWarmUpTokens + int64_t{flags.num_prompts} * flags.load.output_len);
  RETURN_IF_ERROR(bench.run(1, kWarmUpTokens).status());
  ASSIGN_OR_RETURN(Sample sample, bench.run(flags.num_prompts, flags.load.output_len));
  engine::EngineStats stats = bench.stats();
  bench.stop();
  auto prompt_tokens = static_cast<double>(flags.num_prompts) * flags.load.input_len;
  auto output_tokens = static_cast<double>(sample.output_tokens);
  nlohmann::json result = nlohmann::json::parse(run_environment(process, flags.load.draw));
  result["num_prompts"] = flags.num_prompts;
  result["input_len"] = flags.load.input_len;
  result["random_range_ratio"] = flags.load.range_ratio;
  result["output_len"] = flags.load.output_len;
  result["duration_seconds"] = sample.seconds;
  result["request_throughput"] = flags.num_prompts / sample.seconds;
  result["output_throughput"] = output_tokens / sample.seconds;
  result["total_token_throughput"] = (prompt_tokens + output_tokens) / sample.seconds;
  result["tokens_per_second_per_device"] = (prompt_tokens + output_tokens) / sample.seconds / process.size();
  result["num_preemptions"] = stats.scheduler.num_preemptions;
  result["mean_step_ms"] = stats.step_seconds.sum_seconds /
                           static_cast<double>(std::max<uint64_t>(1, stats.step_seconds.count)) * 1e3;
  result["kv_cache_unused_fraction"] = stats.mean_kv_waste();
  std::printf("%d requests of %s + %d tokens in %.2f s: %.1f output tokens/s, %.1f tokens/s in all\n",
              flags.num_prompts,
              length_text(flags.load.input_len, flags.load.range_ratio).c_str(),
              flags.load.output_len,
              sample.seconds,
              output_tokens / sample.seconds,
              (prompt_tokens + output_tokens) / sample.seconds);
  std::printf("allocated KV bytes that hold no token, mean over the steps: %.1f %%; preemptions: %llu\n",
              100 * stats.mean_kv_waste(),
              static_cast<unsigned long long>(stats.scheduler.num_preemptions));
  return save_result(flags.load.engine.result_file, result.dump(2));
}

int run(const ThroughputFlags& flags) {
  auto joined = RankProcess::join(flags.load.engine);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  Status status = process.load(flags.load.engine);
  if (status.ok()) status = process.leads() ? throughput(flags, process) : process.follow();
  return end(process, status);
}

}  // namespace

BenchCommand add_bench_throughput(CLI::App& bench) {
  auto flags = std::make_shared<ThroughputFlags>();
  CLI::App* app = bench.add_subcommand("throughput", "Requests all at once, until the last one ends");
  add_load_flags(*app, flags->load);
  app->add_option("--num-prompts", flags->num_prompts)->check(CLI::PositiveNumber)->capture_default_str();
  app->footer("Example:\n  mpirun -np 2 llm-dist bench throughput model.gguf --num-prompts 64");
  return {app, [flags] { return in_ranks(flags->load.engine.launch, [&] { return run(*flags); }); }};
}

}  // namespace llm_dist::launch
