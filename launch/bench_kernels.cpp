// `llm-dist bench kernels`: each op of a model's steps alone, at the shapes that this layout gives it, beside
// the ceilings measured in the same run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/bench.h"
#include "launch/ceilings.h"
#include "launch/kernel_cases.h"
#include "launch/random_lengths.h"
#include "launch/step_driver.h"

namespace llm_dist::launch {
namespace {

constexpr int kMaxPasses = 1000;
// Beyond this no cache of today keeps anything.
constexpr double kMostFootprintBytes = 0x1p30;

struct KernelFlags {
  EngineFlags engine;
  std::vector<int> batches = {1, 8};
  std::vector<int> input_lens = {128};
  double range_ratio = 0;
  DrawFlags draw{.temperature = 0.8};
};

struct KernelBench {
  RankProcess& process;
  const Ceilings& ceilings;
  KernelRecorder& recorder;
  StepDriver& driver;
  StreamTimer& timer;
  int64_t footprint_bytes = 0;
};

// The share of the time that the op would take if it only moved its bytes, or only multiplied, at the
// ceilings, whichever is longer. Small operands lie in caches: it may exceed 1.
double floor_fraction(const Ceilings& ceilings, const OpCost& cost, double seconds) {
  double floor = cost.bytes / ceilings.read_bytes_per_second;
  const double flops = cost.f8_weight ? ceilings.gemm_flops_per_second : ceilings.head_flops_per_second;
  if (flops > 0) floor = std::max(floor, cost.flops / flops);
  return floor / seconds;
}

nlohmann::json row_of(const KernelBench& bench, const KernelCase& kernel, double seconds) {
  auto calls = static_cast<double>(kernel.calls.size());
  return {{"op", kernel.label},
          {"rows", kernel.rows},
          {"calls_a_step", kernel.calls.size()},
          {"us", seconds * 1e6},
          {"us_a_step", seconds * calls * 1e6},
          {"bytes", kernel.cost.bytes},
          {"flops", kernel.cost.flops},
          {"gb_per_second", kernel.cost.bytes / seconds * 1e-9},
          {"tflop_per_second", kernel.cost.flops / seconds * 1e-12},
          {"ceiling_fraction", floor_fraction(bench.ceilings, kernel.cost, seconds)}};
}

void print_header(const std::string& title) {
  std::printf("\n%s\n", title.c_str());
  std::printf(
      "op                       rows  calls    us each  us a step         MB     GB/s  TFLOP/s  of "
      "ceiling\n");
}

void print_row(const nlohmann::json& row) {
  std::printf("%-22s %6lld %6d %10.2f %10.1f %10.3f %8.2f %8.3f %10.0f%%\n",
              row["op"].get<std::string>().c_str(),
              static_cast<long long>(row["rows"].get<int64_t>()),
              row["calls_a_step"].get<int>(),
              row["us"].get<double>(),
              row["us_a_step"].get<double>(),
              row["bytes"].get<double>() * 1e-6,
              row["gb_per_second"].get<double>(),
              row["tflop_per_second"].get<double>(),
              100 * row["ceiling_fraction"].get<double>());
}

Status measure_cases(KernelBench& bench, const std::vector<KernelCase>& cases, nlohmann::json& rows) {
  for (const KernelCase& kernel : cases) {
    // Ranks that share a host's memory run the same op together, as in a step.
    RETURN_IF_ERROR(bench.process.world().barrier(Deadline::after_seconds(kMeasureSeconds)));
    ASSIGN_OR_RETURN(double seconds,
                     time_case(bench.process.engine().ops(), bench.timer, kernel, bench.footprint_bytes));
    rows.push_back(row_of(bench, kernel, seconds));
    if (bench.process.leads()) print_row(rows.back());
  }
  return ok_status();
}

// Of a greedy step all ops; of one that draws only the drawing, which takes argmax's place.
Result<nlohmann::json> measure_step(KernelBench& bench, StepShape shape, const DrawFlags& draw) {
  auto begin = [&] { bench.recorder.begin(); };
  auto end = [&] { bench.recorder.end(); };
  std::string title = shape.decode ? format("decode, batch {}, contexts of {} tokens",
                                            shape.batch,
                                            length_text(shape.tokens, shape.range_ratio))
                                   : format("prompt of {} tokens", shape.tokens);
  if (bench.process.leads()) print_header(title);
  nlohmann::json rows = nlohmann::json::array();
  RETURN_IF_ERROR(bench.driver.run(shape, begin, end));
  RETURN_IF_ERROR(measure_cases(bench, bench.recorder.take(), rows));
  const std::vector<int> input_lens = bench.driver.input_lens();
  if (shape.decode && draw.temperature > 0) {
    shape.draw = draw;
    RETURN_IF_ERROR(bench.driver.run(shape, begin, end));
    std::vector<KernelCase> cases = bench.recorder.take();
    std::erase_if(cases, [](const KernelCase& kernel) { return kernel.label != "sample"; });
    RETURN_IF_ERROR(measure_cases(bench, cases, rows));
  }
  nlohmann::json step = {{"step", title},
                         {"decode", shape.decode},
                         {"batch", shape.decode ? shape.batch : 0},
                         {"tokens", shape.tokens},
                         {"rows", rows}};
  if (shape.range_ratio > 0) step["input_lens"] = input_lens;
  return step;
}

// Before anything is measured.
Status check_lengths(const KernelFlags& flags, const engine::EngineOptions& options) {
  const int longest = std::max(*std::max_element(flags.input_lens.begin(), flags.input_lens.end()),
                               longest_length(flags.input_lens.front(), flags.range_ratio));
  if (longest < options.max_model_len) return ok_status();
  return invalid_argument(format(
      "sequences of up to {} tokens have no room to decode: raise --max-model-len, which is {}, or lower "
      "--input-len",
      longest,
      options.max_model_len));
}

Status measure_all(const KernelFlags& flags, RankProcess& process, KernelRecorder& recorder) {
  ASSIGN_OR_RETURN(Ceilings ceilings, measure_ceilings(process, {}));
  StepDriver driver(process.engine(), process.checkpoint().config().vocab_size);
  ASSIGN_OR_RETURN(
      StreamTimer timer,
      StreamTimer::create(*process.device().backend, process.engine().ops().stream(), kMaxPasses + 1));
  double footprint = std::min(kMostFootprintBytes, step_weight_bytes(process));
  KernelBench bench{process, ceilings, recorder, driver, timer, static_cast<int64_t>(footprint)};
  nlohmann::json result = nlohmann::json::parse(run_environment(process, flags.draw));
  result["random_range_ratio"] = flags.range_ratio;
  result["ceilings"] = nlohmann::json::parse(ceilings_json(ceilings));
  if (process.leads()) std::printf("%s; rank 0's share of the model\n", describe(ceilings).c_str());
  for (int tokens : flags.input_lens) {
    ASSIGN_OR_RETURN(nlohmann::json step,
                     measure_step(bench, {.decode = false, .tokens = tokens}, flags.draw));
    result["steps"].push_back(std::move(step));
  }
  for (int batch : flags.batches) {
    ASSIGN_OR_RETURN(
        nlohmann::json step,
        measure_step(bench,
                     {.batch = batch, .tokens = flags.input_lens.front(), .range_ratio = flags.range_ratio},
                     flags.draw));
    result["steps"].push_back(std::move(step));
  }
  return process.leads() ? save_result(flags.engine.result_file, result.dump(2)) : ok_status();
}

// Whole prompts in one step, all sequences of a batch in another, one step at a time and op by op.
EngineFlags fitted(const KernelFlags& flags) {
  EngineFlags engine = flags.engine;
  SchedulerFlags& scheduler = engine.scheduler;
  int64_t tokens = *std::max_element(flags.input_lens.begin(), flags.input_lens.end());
  if (scheduler.max_num_batched_tokens > 0 || tokens > kStepTokens)
    scheduler.max_num_batched_tokens = std::max(scheduler.max_num_batched_tokens, tokens);
  make_room_for_batches(scheduler, flags.batches);
  scheduler.async_scheduling = false;
  scheduler.cuda_graph_sizes.assign(flags.batches.begin(), flags.batches.end());
  return engine;
}

int run(const KernelFlags& flags) {
  EngineFlags engine = fitted(flags);
  auto joined = RankProcess::join(engine);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  KernelRecorder recorder;
  Status status;
  if (!engine.profile_file.empty() || !engine.trace_file.empty())
    status =
        process.agree(invalid_argument("--profile and --trace-file are of commands that run whole steps"));
  if (status.ok()) status = process.load(engine, &recorder);
  if (status.ok()) status = process.agree(check_lengths(flags, process.engine().options()));
  if (status.ok()) status = measure_all(flags, process, recorder);
  return end(process, status);
}

}  // namespace

BenchCommand add_bench_kernels(CLI::App& bench) {
  auto flags = std::make_shared<KernelFlags>();
  flags->engine.log_level = "warning";
  CLI::App* app =
      bench.add_subcommand("kernels", "Each op of a model's steps alone, at this layout's shapes");
  add_engine_flags(*app, flags->engine);
  app->add_option("--batch", flags->batches, "Sequences of decode steps, for example 1,8,32")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option(
         "--input-len", flags->input_lens, "Tokens of prompts; decode steps have the first as context")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_range_ratio_flag(*app, flags->range_ratio, "Contexts of decode steps");
  add_draw_flags(*app, flags->draw);
  add_result_flag(*app, flags->engine.result_file);
  app->footer(
      "Example:\n"
      "  mpirun -np 2 llm-dist bench kernels model.gguf --tp 2 --batch 1,8 --input-len 128,512");
  return {app, [flags] { return in_ranks(flags->engine.launch, [&] { return run(*flags); }); }};
}

}  // namespace llm_dist::launch
