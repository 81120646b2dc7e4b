// `llm-dist bench`: latency and throughput of the engine itself, without HTTP, each beside what the machine
// could do.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "launch/ceilings.h"
#include "launch/commands.h"
#include "launch/local_text.h"
#include "launch/rank_process.h"

namespace llm_dist::launch {
namespace {

struct BenchFlags {
  EngineFlags engine;
  std::vector<int> batches = {1};
  int input_len = 128;
  int output_len = 128;
  int num_prompts = 64;
  int repeats = 3;
  std::string result_file;
};

// This process's command line, as it was typed.
std::string typed_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command{std::istreambuf_iterator<char>(file), {}};
  std::replace(command.begin(), command.end(), '\0', ' ');
  return command.substr(0, command.find_last_not_of(' ') + 1);
}

struct Sample {
  double seconds = 0;              // from submission to the last token
  double first_token_seconds = 0;  // until the last of the batch's first tokens
  double decode_seconds = 0;       // from there to the last token
  int64_t output_tokens = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

class Bench {
 public:
  Bench(const BenchFlags& flags, RankProcess& process)
      : flags_(flags),
        process_(process),
        engine_(engine::Engine::start(process.engine(),
                                      process.channel(),
                                      {.max_queued_requests = 1 << 16},
                                      process.hooks(),
                                      [&](const Status& cause) { process.give_up(cause); })) {}

  // `count` sequences at once, random prompts, exactly output_len tokens each.
  Result<Sample> run(int count, int output_len) {
    std::vector<std::shared_ptr<LocalSequence>> sequences;
    std::vector<sched::SequenceRequest> requests;
    requests.reserve(static_cast<size_t>(count));
    sequences.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) requests.push_back(random_request(output_len));
    int64_t begin = now_ns();
    for (sched::SequenceRequest& request : requests) {
      sequences.push_back(std::make_shared<LocalSequence>());
      RETURN_IF_ERROR(engine_->submit(std::move(request), sequences.back()).status());
    }
    Sample sample;
    int64_t last_first = begin;
    int64_t last = begin;
    for (const auto& sequence : sequences) {
      RETURN_IF_ERROR(sequence->wait());
      std::vector<int64_t> times = sequence->token_times_ns();
      if (static_cast<int>(times.size()) != output_len) {
        return internal_error(format("a sequence ended after {} of {} tokens", times.size(), output_len));
      }
      last_first = std::max(last_first, times.front());
      last = std::max(last, times.back());
      sample.output_tokens += static_cast<int64_t>(times.size());
    }
    sample.seconds = static_cast<double>(last - begin) * 1e-9;
    sample.first_token_seconds = static_cast<double>(last_first - begin) * 1e-9;
    sample.decode_seconds = static_cast<double>(last - last_first) * 1e-9;
    return sample;
  }

  engine::EngineStats stats() const { return engine_->stats(); }
  void stop() { engine_->stop(); }

 private:
  sched::SequenceRequest random_request(int output_len) {
    auto vocab = static_cast<int32_t>(process_.checkpoint().config().vocab_size);
    std::uniform_int_distribution<int32_t> token(0, vocab - 1);
    sched::SequenceRequest request;
    for (int i = 0; i < flags_.input_len; ++i) request.prompt.push_back(token(random_));
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = output_len;
    request.sampling.ignore_eos = true;
    request.arrival = Clock::now();
    return request;
  }

  const BenchFlags& flags_;
  RankProcess& process_;
  std::unique_ptr<engine::Engine> engine_;
  std::mt19937 random_{1};
};

nlohmann::json environment(RankProcess& process, engine::RankEngine& engine) {
  const engine::EngineOptions& options = engine.options();
  return {{"model", process.checkpoint().path()},
          {"tp", options.layout.tp},
          {"pp", options.layout.pp},
          {"device", process.device().backend->description()},
          {"graph_sizes", options.graph_sizes},
          {"world_size", process.size()},
          {"threads_per_rank", options.threads},
          {"activations", std::string(to_string(options.dtype))}};
}

void save(const BenchFlags& flags, const nlohmann::json& result) {
  if (flags.result_file.empty()) return;
  std::ofstream file(flags.result_file);
  file << result.dump(2) << "\n";
  std::printf("saved %s\n", flags.result_file.c_str());
}

void print_ceilings(const Ceilings& ceilings) {
  std::printf("ceilings measured here: memory %.1f GB/s", ceilings.read_bytes_per_second * 1e-9);
  if (ceilings.gemm_flops_per_second > 0) {
    std::printf(", matrix products %.1f TFLOP/s", ceilings.gemm_flops_per_second * 1e-12);
  }
  for (auto [batch, seconds] : ceilings.all_reduce_seconds) {
    if (seconds > 0) std::printf(", all-reduce of %d rows %.1f us", batch, seconds * 1e6);
  }
  std::printf("\n\n");
}

struct Latency {
  double first_token_seconds = 0;
  double step_seconds = 0;
};

Result<Latency> measure_latency(const BenchFlags& flags, Bench& bench, int batch) {
  RETURN_IF_ERROR(bench.run(batch, std::min(flags.output_len, 8)).status());  // warm up
  std::vector<double> first, step;
  for (int i = 0; i < flags.repeats; ++i) {
    ASSIGN_OR_RETURN(Sample sample, bench.run(batch, flags.output_len));
    first.push_back(sample.first_token_seconds);
    step.push_back(sample.decode_seconds / std::max(1, flags.output_len - 1));
  }
  return Latency{median(first), median(step)};
}

nlohmann::json latency_row(
    const BenchFlags& flags, RankProcess& process, const Ceilings& ceilings, int batch, const Latency& got) {
  StepFloor floor = decode_floor(process, ceilings, batch, flags.input_len + flags.output_len / 2);
  double prompt_floor = prefill_floor(process, ceilings, int64_t{batch} * flags.input_len);
  double prefill_rate = batch * flags.input_len / got.first_token_seconds;
  std::printf("%5d  %5d  %6d  %8.1f  %13.0f  %8.3f  %12.1f  %8.3f  %7.0f%%\n",
              batch,
              flags.input_len,
              flags.output_len,
              got.first_token_seconds * 1e3,
              prefill_rate,
              got.step_seconds * 1e3,
              batch / got.step_seconds,
              floor.seconds * 1e3,
              100 * floor.seconds / got.step_seconds);
  return {{"batch", batch},
          {"input_len", flags.input_len},
          {"output_len", flags.output_len},
          {"median_ttft_ms", got.first_token_seconds * 1e3},
          {"prefill_tokens_per_second", prefill_rate},
          {"prefill_floor_ms", prompt_floor * 1e3},
          {"prefill_floor_fraction", prompt_floor / got.first_token_seconds},
          {"median_tpot_ms", got.step_seconds * 1e3},
          {"output_throughput", batch / got.step_seconds},
          {"floor_ms", floor.seconds * 1e3},
          {"floor_all_reduce_ms", floor.all_reduce_seconds * 1e3},
          {"floor_fraction", floor.seconds / got.step_seconds}};
}

Status latency(const BenchFlags& flags, RankProcess& process, const Ceilings& ceilings) {
  Bench bench(flags, process);
  nlohmann::json rows = nlohmann::json::array();
  print_ceilings(ceilings);
  std::printf("batch  input  output   TTFT ms  prefill tok/s   TPOT ms  decode tok/s  floor ms  of floor\n");
  for (int batch : flags.batches) {
    ASSIGN_OR_RETURN(Latency got, measure_latency(flags, bench, batch));
    rows.push_back(latency_row(flags, process, ceilings, batch, got));
  }
  bench.stop();
  nlohmann::json result = environment(process, process.engine());
  result["command"] = typed_command();
  result["ceilings"] = {{"memory_read_bytes_per_second", ceilings.read_bytes_per_second},
                        {"gemm_flops_per_second", ceilings.gemm_flops_per_second}};
  for (auto [batch, seconds] : ceilings.all_reduce_seconds) {
    result["ceilings"]["all_reduce_us"][std::to_string(batch)] = seconds * 1e6;
  }
  result["rows"] = rows;
  save(flags, result);
  return ok_status();
}

Status throughput(const BenchFlags& flags, RankProcess& process, const Ceilings&) {
  Bench bench(flags, process);
  RETURN_IF_ERROR(bench.run(1, 4).status());
  ASSIGN_OR_RETURN(Sample sample, bench.run(flags.num_prompts, flags.output_len));
  engine::EngineStats stats = bench.stats();
  bench.stop();
  auto prompt_tokens = static_cast<double>(flags.num_prompts) * flags.input_len;
  auto output_tokens = static_cast<double>(sample.output_tokens);
  nlohmann::json result = environment(process, process.engine());
  result["command"] = typed_command();
  result["num_prompts"] = flags.num_prompts;
  result["input_len"] = flags.input_len;
  result["output_len"] = flags.output_len;
  result["duration_seconds"] = sample.seconds;
  result["request_throughput"] = flags.num_prompts / sample.seconds;
  result["output_throughput"] = output_tokens / sample.seconds;
  result["total_token_throughput"] = (prompt_tokens + output_tokens) / sample.seconds;
  result["tokens_per_second_per_device"] = (prompt_tokens + output_tokens) / sample.seconds / process.size();
  result["num_preemptions"] = stats.scheduler.num_preemptions;
  result["mean_step_ms"] = stats.step_seconds.sum_seconds /
                           static_cast<double>(std::max<uint64_t>(1, stats.step_seconds.count)) * 1e3;
  result["kv_cache_unused_fraction"] = stats.mean_kv_waste();
  std::printf("%d requests of %d + %d tokens in %.2f s: %.1f output tokens/s, %.1f tokens/s in all\n",
              flags.num_prompts,
              flags.input_len,
              flags.output_len,
              sample.seconds,
              output_tokens / sample.seconds,
              (prompt_tokens + output_tokens) / sample.seconds);
  std::printf("allocated KV bytes that hold no token, mean over the steps: %.1f %%; preemptions: %llu\n",
              100 * stats.mean_kv_waste(),
              static_cast<unsigned long long>(stats.scheduler.num_preemptions));
  save(flags, result);
  return ok_status();
}

using Measure = Status (*)(const BenchFlags&, RankProcess&, const Ceilings&);

Status run_loaded(const BenchFlags& flags, RankProcess& process, Measure measure) {
  Ceilings ceilings;
  if (measure == latency) {
    ASSIGN_OR_RETURN(ceilings, measure_ceilings(process, flags.batches));
  }
  return process.leads() ? measure(flags, process, ceilings) : process.follow();
}

int run(const BenchFlags& flags, Measure measure) {
  auto joined = RankProcess::join(flags.engine);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  Status status = process.load(flags.engine);
  if (status.ok()) status = run_loaded(flags, process, measure);
  return end(process, status);
}

void add_common(CLI::App& app, BenchFlags& flags) {
  add_engine_flags(app, flags.engine);
  flags.engine.log_level = "warning";
  app.add_option("--input-len,--random-input-len", flags.input_len, "Prompt tokens")->capture_default_str();
  app.add_option("--output-len,--random-output-len", flags.output_len, "Generated tokens")
      ->capture_default_str();
  app.add_option("--save-result", flags.result_file, "Write the figures as JSON to this file");
}

}  // namespace

RunCommand add_bench(CLI::App& program) {
  CLI::App* bench = program.add_subcommand("bench", "Measure the engine");
  bench->require_subcommand(1);
  auto latency_flags = std::make_shared<BenchFlags>();
  CLI::App* latency_app =
      bench->add_subcommand("latency", "Time to first token and per token of fixed batches");
  add_common(*latency_app, *latency_flags);
  latency_app->add_option("--batch", latency_flags->batches, "Batch sizes, for example 1,8,32")
      ->delimiter(',');
  latency_app->add_option("--repeats", latency_flags->repeats, "Runs a batch; the median counts")
      ->capture_default_str();
  latency_app->footer(
      "Example:\n  llm-dist bench latency model.gguf --threads 2 --batch 1,8 --input-len 128 --output-len "
      "128");
  auto throughput_flags = std::make_shared<BenchFlags>();
  CLI::App* throughput_app =
      bench->add_subcommand("throughput", "Requests all at once, until the last one ends");
  add_common(*throughput_app, *throughput_flags);
  throughput_app->add_option("--num-prompts", throughput_flags->num_prompts)->capture_default_str();
  throughput_app->footer("Example:\n  mpirun -np 2 llm-dist bench throughput model.gguf --num-prompts 64");
  return [=] {
    return latency_app->parsed() ? run(*latency_flags, latency) : run(*throughput_flags, throughput);
  };
}

}  // namespace llm_dist::launch
