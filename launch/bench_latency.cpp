// `llm-dist bench latency`: time to first token and per token of fixed batches, beside the floor that the
// ceilings of the same run leave.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/ceilings.h"
#include "launch/engine_bench.h"
#include "launch/random_lengths.h"
#include "launch/stream_timer.h"

namespace llm_dist::launch {
namespace {

struct LatencyFlags {
  LoadFlags load;
  std::vector<int> batches = {1};
  int repeats = 3;
};

// Medians.
struct Latency {
  double first_token_seconds = 0;
  double step_seconds = 0;
  double context = 0;              // tokens of a sequence in the middle of those steps
  std::vector<size_t> input_lens;  // tokens of the prompts of the last repeat
};

int warm_up_len(const LatencyFlags& flags) { return std::min(flags.load.output_len, 8); }

// Of one token there is nothing but its prompt's.
bool decodes(const LatencyFlags& flags) { return flags.load.output_len > 1; }

int output_len(const LatencyFlags& flags, const engine::EngineOptions& options, int batch) {
  if (!decodes(flags)) return flags.load.output_len;
  return tokens_for_window(batch,
                           flags.load.input_len,
                           flags.load.output_len,
                           options.max_num_batched_tokens,
                           options.enable_chunked_prefill);
}

int64_t num_tokens(const LatencyFlags& flags, const engine::EngineOptions& options) {
  int64_t sum = 0;
  for (int batch : flags.batches)
    sum += batch * (warm_up_len(flags) + int64_t{flags.repeats} * output_len(flags, options, batch));
  return sum;
}

// All sequences of a batch have to run at the same time, if they generate more than one token.
Status check_room(const LatencyFlags& flags, const engine::EngineOptions& options) {
  if (!decodes(flags)) return ok_status();
  for (int batch : flags.batches) {
    const int64_t outputs = output_len(flags, options, batch);
    const int64_t longest = outputs + longest_length(flags.load.input_len, flags.load.range_ratio);
    if (longest > options.max_model_len)
      return invalid_argument(
          format("a batch of {} needs sequences of {} tokens, some while the others' prompts are read: "
                 "--max-model-len is {}",
                 batch,
                 longest,
                 options.max_model_len));
    // Before it lets a sequence begin, the scheduler wants half a block besides for each that runs.
    const int64_t tokens = outputs + flags.load.input_len;
    // Of other lengths than the mean it may be one more, though all have as many tokens together.
    const int64_t rounding = flags.load.range_ratio > 0 ? 1 : 0;
    const int64_t blocks =
        batch * ((tokens + options.block_size - 1) / options.block_size + rounding) + batch / 2;
    if (blocks > options.num_blocks)
      return resource_exhausted(
          format("a batch of {} needs a KV cache of {} tokens, and there is memory for {}: fewer sequences "
                 "(--batch), shorter ones (--input-len, --output-len) or more ranks",
                 batch,
                 blocks * options.block_size,
                 options.num_blocks * options.block_size));
  }
  return ok_status();
}

Result<Latency> measure_latency(const LatencyFlags& flags,
                                const engine::EngineOptions& options,
                                EngineBench& bench,
                                int batch) {
  RETURN_IF_ERROR(bench.run(batch, warm_up_len(flags)).status());
  std::vector<double> first, step, context;
  std::vector<size_t> input_lens;
  for (int i = 0; i < flags.repeats; ++i) {
    ASSIGN_OR_RETURN(Sample sample, bench.run(batch, output_len(flags, options, batch)));
    first.push_back(sample.first_token_seconds);
    const DecodeWindow& decode = sample.decode;
    if (decodes(flags) && decode.steps == 0)
      return internal_error(
          format("of a batch of {} one sequence ended before another's prompt had been read", batch));
    step.push_back(decode.seconds / std::max(1, decode.steps));
    context.push_back(flags.load.input_len + decode.tokens_generated);
    input_lens = std::move(sample.input_lens);
  }
  return Latency{median(first), median(step), median(context), std::move(input_lens)};
}

nlohmann::json prompt_row(const LatencyFlags& flags,
                          RankProcess& process,
                          const Ceilings& ceilings,
                          int batch,
                          const Latency& got) {
  const double floor = prefill_floor(
      ceilings, int64_t{batch} * flags.load.input_len, process.engine().options().max_num_batched_tokens);
  const double rate = batch * flags.load.input_len / got.first_token_seconds;
  std::printf("%5d  %5d  %6d  %8.1f  %13.0f",
              batch,
              flags.load.input_len,
              flags.load.output_len,
              got.first_token_seconds * 1e3,
              rate);
  if (!decodes(flags) && floor > 0)
    std::printf("  %8.1f  %7.0f%%", floor * 1e3, 100 * floor / got.first_token_seconds);
  if (!decodes(flags) && floor == 0) std::printf("  %8s  %8s", "-", "-");  // no such ceiling here
  return {{"batch", batch},
          {"input_len", flags.load.input_len},
          {"random_range_ratio", flags.load.range_ratio},
          {"output_len", flags.load.output_len},
          {"median_ttft_ms", got.first_token_seconds * 1e3},
          {"prefill_tokens_per_second", rate},
          {"prefill_floor_ms", floor * 1e3},
          {"prefill_floor_fraction", floor / got.first_token_seconds}};
}

nlohmann::json latency_row(const LatencyFlags& flags,
                           RankProcess& process,
                           const Ceilings& ceilings,
                           int batch,
                           const Latency& got) {
  nlohmann::json row = prompt_row(flags, process, ceilings, batch, got);
  if (flags.load.range_ratio > 0) row["input_lens"] = got.input_lens;
  if (decodes(flags)) {
    const StepFloor floor = decode_floor(ceilings, decode_shape(process, batch, std::lround(got.context)));
    std::printf("  %8.3f  %12.1f  %8.3f  %7.0f%%",
                got.step_seconds * 1e3,
                batch / got.step_seconds,
                floor.seconds * 1e3,
                100 * floor.seconds / got.step_seconds);
    row.update({{"median_tpot_ms", got.step_seconds * 1e3},
                {"context", got.context},
                {"output_throughput", batch / got.step_seconds},
                {"floor_ms", floor.seconds * 1e3},
                {"floor_all_reduce_ms", floor.all_reduce_seconds * 1e3},
                {"floor_fraction", floor.seconds / got.step_seconds}});
  }
  std::printf("\n");
  return row;
}

Status latency(const LatencyFlags& flags, RankProcess& process, const Ceilings& ceilings) {
  const engine::EngineOptions& options = process.engine().options();
  EngineBench bench(flags.load, process, num_tokens(flags, options));
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%s\n\n", describe(ceilings).c_str());
  std::printf("batch  input  output   TTFT ms  prefill tok/s  %s\n",
              decodes(flags) ? " TPOT ms  decode tok/s  floor ms  of floor" : "floor ms  of floor");
  for (int batch : flags.batches) {
    ASSIGN_OR_RETURN(Latency got, measure_latency(flags, options, bench, batch));
    rows.push_back(latency_row(flags, process, ceilings, batch, got));
  }
  bench.stop();
  nlohmann::json result = nlohmann::json::parse(run_environment(process, flags.load.draw));
  result["ceilings"] = nlohmann::json::parse(ceilings_json(ceilings));
  result["rows"] = rows;
  return save_result(flags.load.engine.result_file, result.dump(2));
}

Status measure(const LatencyFlags& flags, RankProcess& process) {
  ASSIGN_OR_RETURN(Ceilings ceilings, measure_ceilings(process, flags.batches));
  return process.leads() ? latency(flags, process, ceilings) : process.follow();
}

int run(const LatencyFlags& flags) {
  EngineFlags engine = flags.load.engine;
  make_room_for_batches(engine.scheduler, flags.batches);
  auto joined = RankProcess::join(engine);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  Status status = process.load(engine);
  if (status.ok()) status = process.agree(check_room(flags, process.engine().options()));
  if (status.ok()) status = measure(flags, process);
  return end(process, status);
}

}  // namespace

BenchCommand add_bench_latency(CLI::App& bench) {
  auto flags = std::make_shared<LatencyFlags>();
  CLI::App* app = bench.add_subcommand("latency", "Time to first token and per token of fixed batches");
  add_load_flags(*app, flags->load);
  app->add_option(
         "--batch", flags->batches, "Batch sizes, for example 1,8,32; --max-num-seqs rises to the largest")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app->add_option("--repeats", flags->repeats, "Runs a batch; the median counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->footer(
      "Time per token is that of steps in which the whole batch takes part. Where its prompts take many\n"
      "of them, sequences generate more than --output-len tokens: the first do while the last prompts are "
      "read.\n"
      "Examples:\n"
      "  llm-dist bench latency model.gguf --threads 2 --batch 1,8 --input-len 128 --output-len 128\n"
      "  mpirun -np 2 llm-dist bench latency model.gguf --tp 2 --batch 1 --profile profile.json");
  return {app, [flags] { return in_ranks(flags->load.engine.launch, [&] { return run(*flags); }); }};
}

}  // namespace llm_dist::launch
