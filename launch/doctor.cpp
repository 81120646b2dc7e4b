// `llm-dist doctor`: what this launch finds on its hosts, and what to do about it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "launch/commands.h"
#include "launch/device_choice.h"
#include "launch/doctor_checks.h"
#include "launch/idle.h"
#include "launch/rank_process.h"

namespace llm_dist::launch {
namespace {

constexpr int kWarningExitCode = 3;
constexpr int kErrorExitCode = 4;
constexpr int kMissingExitCode = 5;
constexpr double kPatienceSeconds = 60;
constexpr int kRounds = 10;
constexpr int64_t kSmallBytes = int64_t{16} << 10;
constexpr int64_t kLargeBytes = int64_t{32} << 20;

struct DoctorFlags {
  EngineFlags engine;
  bool json = false;
};

Deadline patience() { return Deadline::after_seconds(kPatienceSeconds); }

// Every rank's facts, on every rank.
Result<std::vector<RankFacts>> exchange(RankFacts mine, RankProcess& process) {
  const comm::HostInfo& host = process.world().hosts()[static_cast<size_t>(process.rank())];
  mine.rank = process.rank();
  mine.host = host.hostname;
  mine.local_rank = host.local_rank;
  mine.local_size = host.local_size;
  if (mine.gpus_visible > 0) {
    const Status usable = try_gpu(process.world());
    if (!usable.ok()) mine.gpu_trouble = usable.message();
  }
  mine.idle = idle_resources(process.world(), comm::read_environment(), mine.gpus_visible > 0);
  ASSIGN_OR_RETURN(std::vector<std::string> texts,
                   process.world().all_gather_bytes(facts_to_text(mine), patience()));
  std::vector<RankFacts> all;
  all.reserve(texts.size());
  for (const std::string& text : texts) all.push_back(facts_from_text(text));
  return all;
}

Status measure_barrier(comm::World& world, Measured& measured) {
  RETURN_IF_ERROR(world.barrier(patience()));
  TimePoint begin = Clock::now();
  for (int i = 0; i < kRounds; ++i) RETURN_IF_ERROR(world.barrier(patience()));
  measured.barrier_us = seconds_between(begin, Clock::now()) * 1e6 / kRounds;
  return ok_status();
}

// After a barrier all ranks read their clocks at about the same time; the round with the smallest difference
// counts, and a barrier's time is the error.
Status measure_clocks(comm::World& world, Measured& measured) {
  auto size = static_cast<size_t>(world.rank_info().size);
  std::vector<double> best(size, 1e9);
  for (int i = 0; i < kRounds; ++i) {
    RETURN_IF_ERROR(world.barrier(patience()));
    double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::string bytes(reinterpret_cast<const char*>(&now), sizeof now);
    ASSIGN_OR_RETURN(std::vector<std::string> all, world.all_gather_bytes(bytes, patience()));
    std::vector<double> clocks(size);
    for (size_t r = 0; r < size; ++r) {
      if (all[r].size() != sizeof(double)) return data_loss("a rank's clock");
      std::memcpy(&clocks[r], all[r].data(), sizeof(double));
    }
    for (size_t r = 0; r < size; ++r)
      if (std::fabs(clocks[r] - clocks[0]) < std::fabs(best[r])) best[r] = clocks[r] - clocks[0];
  }
  measured.clock_skew_seconds = best;
  measured.clock_uncertainty_seconds = measured.barrier_us * 1e-6;
  return ok_status();
}

struct ReduceBench {
  comm::Communicator& group;
  device::Stream& stream;
  device::Buffer& data;
  device::Buffer& host;
};

Result<double> time_all_reduce(const ReduceBench& bench, int64_t bytes) {
  Tensor tensor = bench.data.view(DType::kF32, {bytes / static_cast<int64_t>(sizeof(float))});
  bench.group.all_reduce(tensor, comm::ReduceOp::kSum, bench.stream);  // brings the ranks together
  RETURN_IF_ERROR(bench.stream.synchronize(patience()));
  TimePoint begin = Clock::now();
  for (int i = 0; i < kRounds; ++i) bench.group.all_reduce(tensor, comm::ReduceOp::kSum, bench.stream);
  RETURN_IF_ERROR(bench.stream.synchronize(patience()));
  return seconds_between(begin, Clock::now()) / kRounds;
}

// 1 + 2 + … + size in every place.
Status check_sums(const ReduceBench& bench, int rank, int size) {
  constexpr int64_t kNumbers = 1024;
  Tensor host = bench.host.view(DType::kF32, {kNumbers});
  Tensor device = bench.data.view(DType::kF32, {kNumbers});
  auto* numbers = reinterpret_cast<float*>(bench.host.data());
  std::fill_n(numbers, kNumbers, static_cast<float>(rank + 1));
  bench.stream.copy(device, host);
  bench.group.all_reduce(device, comm::ReduceOp::kSum, bench.stream);
  bench.stream.copy(host, device);
  RETURN_IF_ERROR(bench.stream.synchronize(patience()));
  int sum = size * (size + 1) / 2;
  auto expected = static_cast<float>(sum);
  for (int64_t i = 0; i < kNumbers; ++i)
    if (numbers[i] != expected)
      return data_loss(
          format("all-reduce gives {} where {} is right, on rank {}", numbers[i], expected, rank));
  return ok_status();
}

Status run_collectives(RankProcess& process, const RankDevice& device, Measured& measured) {
  comm::World& world = process.world();
  std::vector<int> everybody(static_cast<size_t>(process.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  std::unique_ptr<device::Stream> stream = device.backend->make_stream("doctor");
  ASSIGN_OR_RETURN(auto group, make_device_communicator(world, device, everybody, "doctor"));
  ASSIGN_OR_RETURN(device::Buffer data, device.backend->allocate(kLargeBytes, device::MemoryKind::kDevice));
  ASSIGN_OR_RETURN(device::Buffer host, device.backend->allocate(kSmallBytes, device::MemoryKind::kPinned));
  ReduceBench bench{*group, *stream, data, host};
  RETURN_IF_ERROR(check_sums(bench, process.rank(), process.size()));
  ASSIGN_OR_RETURN(double small, time_all_reduce(bench, kSmallBytes));
  ASSIGN_OR_RETURN(double large, time_all_reduce(bench, kLargeBytes));
  measured.all_reduce_small_us = small * 1e6;
  measured.all_reduce_bytes_per_second = static_cast<double>(kLargeBytes) / large;
  // Nobody's end of the group goes while another still uses it.
  return world.barrier(patience());
}

Result<Measured> measure(const DoctorFlags& flags, RankProcess& process) {
  const comm::RankInfo& info = process.world().rank_info();
  Measured measured{.launcher = std::string(comm::to_string(info.source)),
                    .rendezvous = process.rendezvous(),
                    .channel = process.channel() == nullptr ? "none" : process.channel()->info().transport};
  if (process.size() == 1) {
    // A GPU that was asked for has to be there for one rank, too.
    auto device = choose_device(flags.engine, process.world(), 1);
    if (!device.ok()) measured.device_error = device.status().message();
    return measured;
  }
  RETURN_IF_ERROR(measure_barrier(process.world(), measured));
  RETURN_IF_ERROR(measure_clocks(process.world(), measured));
  auto device = choose_device(flags.engine, process.world(), 1);
  if (!device.ok()) {
    measured.all_reduce_error = device.status().message();
    return measured;
  }
  measured.device = std::string(to_string(device->device.type));
  Status ran = run_collectives(process, *device, measured);
  if (!ran.ok()) measured.all_reduce_error = ran.message();
  return measured;
}

void print_text(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    std::string where = finding.where.empty() ? "" : finding.where + ": ";
    std::printf("%-8s %-12s %s%s\n",
                std::string(to_string(finding.severity)).c_str(),
                finding.check.c_str(),
                where.c_str(),
                finding.message.c_str());
    if (!finding.advice.empty() && finding.severity != Severity::kOk)
      std::printf("%-8s %-12s   → %s\n", "", "", finding.advice.c_str());
  }
}

void print_json(const std::vector<RankFacts>& ranks,
                const std::vector<Finding>& findings,
                const Measured& measured) {
  nlohmann::json out;
  out["status"] = std::string(to_string(worst(findings)));
  out["launcher"] = measured.launcher;
  out["rendezvous"] = measured.rendezvous;
  out["findings"] = nlohmann::json::array();
  for (const Finding& finding : findings)
    out["findings"].push_back({{"severity", std::string(to_string(finding.severity))},
                               {"check", finding.check},
                               {"where", finding.where},
                               {"message", finding.message},
                               {"advice", finding.advice}});
  out["ranks"] = nlohmann::json::array();
  for (const RankFacts& rank : ranks) out["ranks"].push_back(nlohmann::json::parse(facts_to_text(rank)));
  std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

int exit_code(Severity severity) {
  if (severity == Severity::kError) return kErrorExitCode;
  return severity == Severity::kWarning ? kWarningExitCode : 0;
}

// No world: each rank that came says why.
int report_missing(const DoctorFlags& flags, const Status& why) {
  if (!flags.json) {
    std::printf("error    ranks        %s\n", why.message().c_str());
    return kMissingExitCode;
  }
  nlohmann::json finding = {
      {"severity", "error"}, {"check", "ranks"}, {"where", ""}, {"message", why.message()}, {"advice", ""}};
  nlohmann::json out = {{"status", "error"}, {"findings", nlohmann::json::array({finding})}};
  std::printf("%s\n", out.dump(2).c_str());
  return kMissingExitCode;
}

Status examine_together(const DoctorFlags& flags, const RankFacts& mine, RankProcess& process, int* code) {
  ASSIGN_OR_RETURN(std::vector<RankFacts> ranks, exchange(mine, process));
  ASSIGN_OR_RETURN(Measured measured, measure(flags, process));
  if (!process.leads()) return ok_status();
  std::vector<Finding> findings = examine(ranks, measured, flags.engine.launch.allow_idle);
  flags.json ? print_json(ranks, findings, measured) : print_text(findings);
  std::fflush(stdout);
  *code = exit_code(worst(findings));
  return ok_status();
}

int run(const DoctorFlags& flags) {
  RankFacts mine = gather_facts(flags.engine.model.model);
  auto joined = RankProcess::join(flags.engine);
  if (!joined.ok()) return report_missing(flags, joined.status());
  RankProcess& process = **joined;
  int code = 0;
  Status status = examine_together(flags, mine, process, &code);
  int ended = end(process, status);
  return ended != 0 ? kErrorExitCode : code;
}

}  // namespace

RunCommand add_doctor(CLI::App& program) {
  auto flags = std::make_shared<DoctorFlags>();
  // Somebody waits in front of it.
  flags->engine.launch.rendezvous_timeout_seconds = 30;
  flags->engine.log_level = "warning";
  CLI::App* app = program.add_subcommand(
      "doctor",
      "Check the hosts, limits, network, devices and files of a launch; start it as you would serve");
  app->add_option("model", flags->engine.model.model, "Also check this model's file system on every host")
      ->type_name("MODEL");
  add_process_flags(*app, flags->engine);
  app->add_flag("--json", flags->json, "Findings and facts as JSON");
  app->footer(
      "Exit codes: 0 nothing to do, 3 warnings, 4 errors, 5 ranks are missing.\n"
      "Examples:\n"
      "  mpirun -np 8 --hostfile hosts llm-dist doctor /models/Llama-3.3-70B\n"
      "  srun -N2 --ntasks-per-node=8 llm-dist doctor\n"
      "  llm-dist doctor --nnodes 2 --node-rank 0 --nproc-per-node 8 --master-addr node1");
  return [flags] { return in_ranks(flags->engine.launch, [&] { return run(*flags); }); };
}

}  // namespace llm_dist::launch
