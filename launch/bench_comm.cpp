// `llm-dist bench comm`: how long the collectives of a tensor group take, without a model.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "launch/bench.h"
#include "launch/byte_size.h"
#include "launch/collective_cases.h"
#include "launch/stream_timer.h"

namespace llm_dist::launch {
namespace {

constexpr int kMaxRepeats = 10000;
constexpr int kCallsInGraph = 16;
constexpr double kMostSeconds = 0.5;  // for the repeats of one case

struct CommFlags {
  EngineFlags engine;  // those of them that concern ranks and devices
  std::string sizes = "4KiB:64MiB";
  std::vector<std::string> ops = {"all_reduce", "reduce_scatter", "all_gather", "send_recv"};
  int repeats = 200;
};

struct Figures {
  double median_seconds = 0;
  double p99_seconds = 0;
};

// What the flags come to, the same on every rank but for its group.
struct CommPlan {
  DType dtype = DType::kBF16;
  std::vector<int64_t> sizes;
  std::vector<int> ranks;  // of this rank's group
  std::vector<CollectiveKind> kinds;
};

// One rank's view of the group that is measured.
struct CommBench {
  RankProcess& process;
  comm::Communicator& group;
  StreamTimer& timer;
  CollectiveCases& cases;
  int repeats = 0;
};

// Each value's largest over all ranks of the world: a call is done where it is done everywhere.
Result<std::vector<double>> slowest(RankProcess& process, const std::vector<double>& mine) {
  std::string bytes(mine.size() * sizeof(double), '\0');
  std::memcpy(bytes.data(), mine.data(), bytes.size());
  ASSIGN_OR_RETURN(std::vector<std::string> all,
                   process.world().all_gather_bytes(bytes, Deadline::after_seconds(kMeasureSeconds)));
  std::vector<double> most = mine;
  for (const std::string& theirs : all) {
    if (theirs.size() != bytes.size()) return internal_error("the ranks do not measure the same");
    for (size_t i = 0; i < most.size(); ++i) {
      double value = 0;
      std::memcpy(&value, theirs.data() + i * sizeof value, sizeof value);
      most[i] = std::max(most[i], value);
    }
  }
  return most;
}

Result<Figures> figures_of(CommBench& bench, CollectiveKind kind, std::vector<double> mine, int calls) {
  // There and back is two calls' time.
  double share = 1.0 / (calls * (kind == CollectiveKind::kSendRecv ? 2 : 1));
  ASSIGN_OR_RETURN(std::vector<double> seconds, slowest(bench.process, mine));
  return Figures{median(seconds) * share, quantile(seconds, 0.99) * share};
}

// As many as fit into the time, the same on every rank.
Result<int> repeats_for(CommBench& bench, const std::function<void()>& issue) {
  ASSIGN_OR_RETURN(std::vector<double> first, bench.timer.times_of(3, issue));
  ASSIGN_OR_RETURN(first, slowest(bench.process, first));
  double each = std::max(1e-7, *std::min_element(first.begin(), first.end()));
  return std::clamp(static_cast<int>(kMostSeconds / each), 5, std::max(5, bench.repeats));
}

Result<Figures> measure(CommBench& bench, CollectiveKind kind, int64_t bytes, bool in_graph) {
  std::function<void()> issue = [&] { bench.cases.issue(kind, bytes, bench.timer.stream()); };
  std::unique_ptr<device::Graph> graph;
  if (in_graph) {
    ASSIGN_OR_RETURN(graph, bench.timer.capture(kCallsInGraph, issue));
    issue = [&] { graph->launch(bench.timer.stream()); };
  }
  ASSIGN_OR_RETURN(int repeats, repeats_for(bench, issue));
  // The first one also waits for the ranks to come.
  ASSIGN_OR_RETURN(std::vector<double> seconds, bench.timer.times_of(repeats + 1, issue));
  seconds.erase(seconds.begin());
  return figures_of(bench, kind, std::move(seconds), in_graph ? kCallsInGraph : 1);
}

double gigabytes_per_second(int64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds * 1e-9 : 0;
}

void add_figures(
    nlohmann::json& row, const std::string& prefix, int64_t bytes, double factor, const Figures& figures) {
  double bandwidth = gigabytes_per_second(bytes, figures.median_seconds);
  row[prefix + "median_us"] = figures.median_seconds * 1e6;
  row[prefix + "p99_us"] = figures.p99_seconds * 1e6;
  row[prefix + "algorithm_gb_per_second"] = bandwidth;
  row[prefix + "bus_gb_per_second"] = bandwidth * factor;
}

void print_row(const nlohmann::json& row, const std::string& prefix) {
  std::printf("%-16s %12lld  %-6s %11.1f %11.1f %10.3f %10.3f\n",
              row["op"].get<std::string>().c_str(),
              static_cast<long long>(row["bytes"].get<int64_t>()),
              prefix.empty() ? "issued" : "graph",
              row[prefix + "median_us"].get<double>(),
              row[prefix + "p99_us"].get<double>(),
              row[prefix + "algorithm_gb_per_second"].get<double>(),
              row[prefix + "bus_gb_per_second"].get<double>());
}

Result<nlohmann::json> measure_row(CommBench& bench, CollectiveKind kind, int64_t about) {
  int64_t bytes = bench.cases.bytes_of(about);
  double factor = bus_factor(kind, bench.group.info().size);
  nlohmann::json row = {{"op", std::string(to_string(kind))}, {"bytes", bytes}};
  bool leads = bench.process.leads();
  ASSIGN_OR_RETURN(Figures issued, measure(bench, kind, bytes, false));
  add_figures(row, "", bytes, factor, issued);
  if (leads) print_row(row, "");
  if (!bench.timer.backend().prefers_graphs()) return row;
  ASSIGN_OR_RETURN(Figures graph, measure(bench, kind, bytes, true));
  add_figures(row, "graph_", bytes, factor, graph);
  if (leads) print_row(row, "graph_");
  return row;
}

nlohmann::json environment(CommBench& bench, DType dtype) {
  return {{"command", typed_command()},
          {"device", bench.timer.backend().description()},
          {"threads_per_rank", bench.process.threads()},
          {"backend", bench.group.info().backend},
          {"world_size", bench.process.size()},
          {"group_size", bench.group.info().size},
          {"dtype", std::string(to_string(dtype))}};
}

// Ranks of this rank's group: neighbours, as a tensor group's are.
Result<std::vector<int>> group_ranks(const CommFlags& flags, const RankProcess& process) {
  int size = flags.engine.parallel.tp > 0 ? flags.engine.parallel.tp : process.size();
  if (process.size() % size != 0)
    return invalid_argument(format("--tp {} does not divide {} ranks", size, process.size()));
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), process.rank() / size * size);
  return ranks;
}

Result<std::vector<CollectiveKind>> kinds_of(const CommFlags& flags, int group_size) {
  std::vector<CollectiveKind> kinds;
  kinds.reserve(flags.ops.size());
  for (const std::string& name : flags.ops) {
    ASSIGN_OR_RETURN(CollectiveKind kind, parse_collective(name));
    if (kind == CollectiveKind::kSendRecv && group_size == 1) continue;  // nobody is there to send to
    kinds.push_back(kind);
  }
  return kinds;
}

Status make_plan(const CommFlags& flags, const RankProcess& process, CommPlan& plan) {
  ASSIGN_OR_RETURN(plan.dtype, parse_dtype("--dtype", flags.engine.model.dtype));
  ASSIGN_OR_RETURN(plan.sizes, parse_byte_sizes("--sizes", flags.sizes));
  ASSIGN_OR_RETURN(plan.ranks, group_ranks(flags, process));
  ASSIGN_OR_RETURN(plan.kinds, kinds_of(flags, static_cast<int>(plan.ranks.size())));
  return ok_status();
}

Status measure_all(const CommFlags& flags, const CommPlan& plan, RankProcess& process) {
  const RankDevice& device = process.device();
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> group,
                   make_device_communicator(process.world(), device, plan.ranks, "bench"));
  ASSIGN_OR_RETURN(
      std::unique_ptr<comm::Communicator> hand_off,
      make_device_communicator(process.world(), device, plan.ranks, "bench-messages", {.hands_off = true}));
  ASSIGN_OR_RETURN(StreamTimer timer, StreamTimer::create(*device.backend, "bench", kMaxRepeats + 2));
  ASSIGN_OR_RETURN(CollectiveCases cases,
                   CollectiveCases::create(*device.backend,
                                           *group,
                                           *hand_off,
                                           plan.dtype,
                                           *std::max_element(plan.sizes.begin(), plan.sizes.end())));
  CommBench bench{process, *group, timer, cases, flags.repeats};
  nlohmann::json result = environment(bench, plan.dtype);
  if (process.leads()) {
    std::printf("groups of %zu over %s, %s\n\n",
                plan.ranks.size(),
                group->info().backend.c_str(),
                std::string(to_string(plan.dtype)).c_str());
    std::printf("op                      bytes             median us      p99 us   alg GB/s   bus GB/s\n");
  }
  for (CollectiveKind kind : plan.kinds) {
    for (int64_t size : plan.sizes) {
      ASSIGN_OR_RETURN(nlohmann::json row, measure_row(bench, kind, size));
      result["rows"].push_back(std::move(row));
    }
  }
  RETURN_IF_ERROR(timer.synchronize());
  // Nobody's end of the group goes while another still uses it.
  RETURN_IF_ERROR(process.world().barrier(Deadline::after_seconds(kMeasureSeconds)));
  return process.leads() ? save_result(flags.engine.result_file, result.dump(2)) : ok_status();
}

int run(const CommFlags& flags) {
  auto joined = RankProcess::join(flags.engine);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  Status status = process.take_device(flags.engine);
  CommPlan plan;
  if (status.ok()) status = process.agree(make_plan(flags, process, plan));
  if (status.ok()) status = measure_all(flags, plan, process);
  return end(process, status);
}

}  // namespace

BenchCommand add_bench_comm(CLI::App& bench) {
  auto flags = std::make_shared<CommFlags>();
  flags->engine.log_level = "warning";
  flags->engine.model.dtype = "bfloat16";
  CLI::App* app = bench.add_subcommand("comm", "Collectives of a tensor group, by size; no model");
  app->add_option("--sizes", flags->sizes, "From:to (doubling), or a list; of the whole tensor")
      ->capture_default_str();
  app->add_option("--op",
                  flags->ops,
                  "all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send_recv (there and back "
                  "in pairs; the time is one way's)")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option(
         "--tp,--tp-size,--tensor-parallel-size", flags->engine.parallel.tp, "Ranks of a group (0: all)")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--dtype", flags->engine.model.dtype, "bfloat16, float16, float32")->capture_default_str();
  app->add_option("--repeats", flags->repeats, "Calls a case, fewer where they would take over half a second")
      ->check(CLI::Range(5, kMaxRepeats))
      ->capture_default_str();
  add_process_flags(*app, flags->engine);
  add_result_flag(*app, flags->engine.result_file);
  app->footer(
      "Example:\n"
      "  mpirun -np 2 llm-dist bench comm --sizes 4KiB:64MiB --op all_reduce,send_recv --save-result "
      "comm.json");
  return {app, [flags] { return in_ranks(flags->engine.launch, [&] { return run(*flags); }); }};
}

}  // namespace llm_dist::launch
