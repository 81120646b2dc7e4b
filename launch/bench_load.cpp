// `llm-dist bench load`: how fast ranks read their weights from files into their devices, beside how fast
// memory and the way to the device take plain copies in the same run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "launch/bench.h"
#include "launch/memory_ceiling.h"
#include "launch/stream_timer.h"
#include "src/model/weight_reader.h"

namespace llm_dist::launch {
namespace {

constexpr int64_t kSourceBytes = int64_t{1} << 30;  // of a host: more than caches hold
constexpr int64_t kDeviceBytes = int64_t{64} << 20;
constexpr int kDeviceCopies = 64;

// Of copies from pinned memory; 0 where the host writes the device's memory itself.
class DeviceCopies {
 public:
  static Result<DeviceCopies> create(device::Backend& backend) {
    DeviceCopies made;
    if (backend.host_addressable()) return made;
    ASSIGN_OR_RETURN(made.from_, backend.allocate(kDeviceBytes, device::MemoryKind::kPinned));
    ASSIGN_OR_RETURN(made.to_, backend.allocate(kDeviceBytes, device::MemoryKind::kDevice));
    ASSIGN_OR_RETURN(made.timer_, StreamTimer::create(backend, "copies"));
    return made;
  }
  Result<double> bytes_per_second() {
    if (!timer_) return 0.0;
    ASSIGN_OR_RETURN(double seconds, timer_->mean_of(kDeviceCopies, [&] {
      timer_->stream().copy(to_.view(DType::kU8, {kDeviceBytes}), from_.view(DType::kU8, {kDeviceBytes}));
    }));
    return static_cast<double>(kDeviceBytes) / seconds;
  }

 private:
  device::Buffer from_;
  device::Buffer to_;
  std::optional<StreamTimer> timer_;  // behind what its copies touch
};

// This rank's. Each plain copy is measured while the other ranks measure theirs: they load at the same time,
// too.
Result<nlohmann::json> measure_rank(RankProcess& process) {
  const checkpoint::ReadStats& read = process.engine().load_stats();
  const comm::HostInfo& host = process.world().hosts()[static_cast<size_t>(process.rank())];
  const int threads = process.engine().options().load_threads;
  const auto held = static_cast<double>(process.engine().memory_plan().weight_bytes);
  HostCopies host_copies(threads, kSourceBytes / host.local_size, model::WeightReader::kLotBytes);
  ASSIGN_OR_RETURN(DeviceCopies device_copies, DeviceCopies::create(*process.device().backend));
  const Deadline deadline = Deadline::after_seconds(kMeasureSeconds);
  RETURN_IF_ERROR(process.world().barrier(deadline));
  const double by_host = host_copies.bytes_per_second();
  RETURN_IF_ERROR(process.world().barrier(deadline));
  ASSIGN_OR_RETURN(const double to_device, device_copies.bytes_per_second());
  double least_seconds = static_cast<double>(read.bytes_read) / by_host;
  if (to_device > 0) least_seconds = std::max(least_seconds, held / to_device);
  return nlohmann::json{{"rank", process.rank()},
                        {"host", host.hostname},
                        {"threads", threads},
                        {"bytes_read", read.bytes_read},
                        {"bytes_held", held},
                        {"requests", read.requests},
                        {"seconds", read.seconds},
                        {"gb_per_second", static_cast<double>(read.bytes_read) / read.seconds * 1e-9},
                        {"host_copy_gb_per_second", by_host * 1e-9},
                        {"to_device_gb_per_second", to_device * 1e-9},
                        {"ceiling_fraction", least_seconds / read.seconds}};
}

void print_rows(const nlohmann::json& rows) {
  std::printf(
      "rank  threads  GB read  requests  seconds     GB/s  host copy GB/s  to device GB/s  of ceiling\n");
  for (const nlohmann::json& row : rows) {
    const double to_device = row["to_device_gb_per_second"].get<double>();
    char device[16] = "-";
    if (to_device > 0) std::snprintf(device, sizeof device, "%.2f", to_device);
    std::printf("%4d %8d %8.2f %9lld %8.3f %8.2f %15.2f %15s %10.0f%%\n",
                row["rank"].get<int>(),
                row["threads"].get<int>(),
                row["bytes_read"].get<double>() * 1e-9,
                static_cast<long long>(row["requests"].get<int64_t>()),
                row["seconds"].get<double>(),
                row["gb_per_second"].get<double>(),
                row["host_copy_gb_per_second"].get<double>(),
                device,
                100 * row["ceiling_fraction"].get<double>());
  }
}

// What the ranks of each host read, of the model's bytes. Each reads what it holds, and only norms and the
// like are held by several.
nlohmann::json reads_of_hosts(const nlohmann::json& rows, int64_t model_bytes) {
  std::map<std::string, int64_t> read;
  for (const nlohmann::json& row : rows)
    read[row["host"].get<std::string>()] += row["bytes_read"].get<int64_t>();
  nlohmann::json hosts = nlohmann::json::array();
  for (const auto& [host, bytes] : read) {
    const double share = static_cast<double>(bytes) / static_cast<double>(model_bytes);
    hosts.push_back({{"host", host}, {"bytes_read", bytes}, {"of_model", share}});
    std::printf("%s: read %.2f GB, %.3f of the model's tensors\n",
                host.c_str(),
                static_cast<double>(bytes) * 1e-9,
                share);
  }
  return hosts;
}

int64_t bytes_of(const checkpoint::Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const checkpoint::TensorInfo& tensor : checkpoint.tensors()) bytes += tensor.bytes();
  return bytes;
}

Status measure_all(const EngineFlags& flags, RankProcess& process) {
  ASSIGN_OR_RETURN(const nlohmann::json mine, measure_rank(process));
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   process.world().all_gather_bytes(mine.dump(), Deadline::after_seconds(kMeasureSeconds)));
  if (!process.leads()) return ok_status();
  nlohmann::json result = nlohmann::json::parse(run_environment(process));
  for (const std::string& row : all) result["ranks"].push_back(nlohmann::json::parse(row));
  print_rows(result["ranks"]);
  result["model_bytes"] = bytes_of(process.checkpoint());
  result["hosts"] = reads_of_hosts(result["ranks"], result["model_bytes"].get<int64_t>());
  return save_result(flags.result_file, result.dump(2));
}

int run(EngineFlags flags) {
  flags.scheduler.enforce_eager = true;  // loading is all that is wanted
  auto joined = RankProcess::join(flags);
  if (!joined.ok()) return report(nullptr, joined.status());
  RankProcess& process = **joined;
  Status status;
  if (flags.model.load_format == "dummy")
    status =
        process.agree(invalid_argument("bench load reads files, and --load-format dummy makes weights up"));
  if (status.ok()) status = process.load(flags);
  if (status.ok()) status = measure_all(flags, process);
  return end(process, status);
}

}  // namespace

BenchCommand add_bench_load(CLI::App& bench) {
  auto flags = std::make_shared<EngineFlags>();
  flags->log_level = "warning";
  CLI::App* app = bench.add_subcommand("load", "Reading a model's weights, beside plain copies");
  add_engine_flags(*app, *flags);
  add_result_flag(*app, flags->result_file);
  app->footer(
      "The first call may read from disk; later ones read from the page cache.\n"
      "Example:\n"
      "  mpirun -np 2 llm-dist bench load model.gguf --tp 2 --save-result load.json");
  return {app, [flags] { return in_ranks(flags->launch, [&] { return run(*flags); }); }};
}

}  // namespace llm_dist::launch
