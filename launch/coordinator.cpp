// `llm-dist coordinator`: jobs over an API, replicas that are looked after.
#include "cluster/coordinator.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <set>

#include "cluster/store/location.h"
#include "launch/command_tree.h"
#include "launch/commands.h"
#include "launch/device_choice.h"
#include "launch/endpoint_file.h"
#include "launch/gpu_names.h"
#include "launch/placement.h"
#include "launch/shutdown_signal.h"
#include "src/base/log.h"

namespace llm_dist::launch {
namespace {

constexpr double kCloseSeconds = 2;

struct CoordinatorFlags {
  cluster::CoordinatorOptions options;
  std::string endpoint_file;
  std::string api_key_file;
  std::vector<std::string> gpus;  // empty: looked for
  int num_slots = 0;              // 0: see find_resources()
};

constexpr auto kGpuPatience = std::chrono::seconds(120);
constexpr const char* kNoGpus = "none";

// A slot for each GPU, or else for each core, unless told otherwise.
Result<cluster::SlotResources> find_resources(const CoordinatorFlags& flags) {
  cluster::SlotResources found{.gpus = flags.gpus, .cpus = by_core(allowed_cpus())};
  if (flags.gpus == std::vector<std::string>{kNoGpus}) {
    found.gpus.clear();
  } else if (flags.gpus.empty()) {
    auto gpus = find_gpus(visible_gpus, kGpuPatience);
    if (!gpus.ok()) return gpus.status().with_context("looking for GPUs (--gpus names them, or none)");
    found.gpus = std::move(*gpus);
  }
  if (std::set<std::string>(found.gpus.begin(), found.gpus.end()).size() < found.gpus.size())
    return invalid_argument("--gpus names one twice: for several slots on a GPU, raise --slots");
  const size_t natural = found.gpus.empty() ? found.cpus.size() : found.gpus.size();
  found.num_slots = flags.num_slots > 0 ? flags.num_slots : std::max(1, static_cast<int>(natural));
  return found;
}

// The names of the flags that a job's processes may have. Of a switch the second name may be its opposite.
cluster::FlagNames flag_names_of(const CLI::App& program) {
  const std::set<std::string> commands = {
      "llm-dist serve", "llm-dist bench latency", "llm-dist bench throughput"};
  std::vector<std::vector<std::string>> flags;
  for (const auto& [typed, name] : kShortNames) flags.push_back({name, typed});
  for_each_command(describe(program), [&](const CommandEntry& command) {
    if (!commands.contains(joined(command.path, " "))) return;
    for (const FlagGroup& group : command.groups) {
      for (const FlagEntry& flag : group.flags) {
        if (flag.kind != ValueKind::kNone) flags.push_back(flag.names);
      }
    }
  });
  return cluster::FlagNames(flags);
}

void reread_catalogue(cluster::Coordinator& coordinator, const std::string& file) {
  Status status = coordinator.reread_catalogue();
  if (status.ok()) return log_info("SIGHUP: {} is in force as it is now", file);
  log_error("SIGHUP: what {} said before stays in force: {}", file, status.message());
}

Status serve(CoordinatorFlags& flags) {
  // The store holds what was asked and answered, and so may what jobs leave behind.
  umask(S_IRWXG | S_IRWXO);
  ASSIGN_OR_RETURN(flags.options.slots, find_resources(flags));
  cluster::Coordinator* started = nullptr;
  // Before any thread is started, so that every thread inherits its mask.
  ShutdownSignal signal([&] { reread_catalogue(*started, flags.options.catalogue_file); });
  ASSIGN_OR_RETURN(flags.options.api_keys, cluster::accepted_access_keys(flags.api_key_file));
  flags.options.program = std::filesystem::read_symlink("/proc/self/exe");
  ASSIGN_OR_RETURN(flags.options.store_path, cluster::canonical_store_path(flags.options.store_path));
  EndpointFile endpoint(flags.endpoint_file, signal);
  ASSIGN_OR_RETURN(auto coordinator, cluster::Coordinator::start(flags.options));
  started = coordinator.get();
  RETURN_IF_ERROR(endpoint.write(coordinator->url()));
  log_info("coordinator at {}, store {}", coordinator->url(), flags.options.store_path);
  const cluster::SlotResources& slots = flags.options.slots;
  log_info("{} slots on {} GPUs and {} cores", slots.num_slots, slots.gpus.size(), slots.cpus.size());
  std::string why = signal.wait();
  log_info("{}: running jobs go on without a coordinator for {} s", why, flags.options.orphan_seconds);
  coordinator->stop(Deadline::after_seconds(kCloseSeconds));
  return ok_status();
}

int run(CoordinatorFlags flags) {
  Status status = serve(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "llm-dist: %s\n", status.message().c_str());
  return 1;
}

}  // namespace

RunCommand add_coordinator(CLI::App& program) {
  auto flags = std::make_shared<CoordinatorFlags>();
  flags->options.store_path = cluster::default_store_path();
  flags->options.version = LLM_DIST_VERSION;
  CLI::App* app = program.add_subcommand("coordinator", "Take jobs over an API and run them");
  app->add_option("--catalogue", flags->options.catalogue_file, "JSON file of the models that jobs may name")
      ->required();
  app->add_option("--store", flags->options.store_path, "The durable store, on a local disk")
      ->capture_default_str();
  app->add_option(
         "--slots", flags->num_slots, "Ranks that may run at a time (default: one a GPU, else one a core)")
      ->check(CLI::Range(1, 4096));
  app->add_option(
         "--gpus",
         flags->gpus,
         "GPUs for them, as CUDA_VISIBLE_DEVICES names them, or none (default: all that are visible)")
      ->delimiter(',');
  app->add_option("--orphan-seconds",
                  flags->options.orphan_seconds,
                  "Jobs end when no coordinator has come back for so long")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app->add_option("--drain-seconds",
                  flags->options.drain_seconds,
                  "What the open requests of a replica get when it is to end")
      ->capture_default_str()
      ->check(CLI::Range(0, 3600));
  app->add_option("--keep-days",
                  flags->options.keep_days,
                  "Records and logs of jobs stay so long after their end (0: for ever)")
      ->capture_default_str()
      ->check(CLI::Range(0, 36500));
  app->add_option("--max-file-bytes", flags->options.max_file_bytes, "Size of an uploaded file")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app->add_option("--batch-concurrency",
                  flags->options.batch_concurrency,
                  "Requests of one batch that each of its replicas has at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app->add_option("--host", flags->options.host, "Address to listen at")->capture_default_str();
  app->add_option("--port", flags->options.port, "0: any free one")->capture_default_str();
  app->add_option("--endpoint-file", flags->endpoint_file, "This file holds the URL while it listens");
  app->add_option("--api-key-file",
                  flags->api_key_file,
                  "Accepted keys and their scopes, one a line (or LLM_DIST_API_KEY)");
  app->add_option("--ssl-certfile", flags->options.ssl_certfile, "PEM certificate chain");
  app->add_option("--ssl-keyfile", flags->options.ssl_keyfile, "PEM private key");
  app->footer(
      "Examples:\n"
      "  llm-dist coordinator --catalogue models.json\n"
      "  llm-dist coordinator --catalogue models.json --store /var/lib/llm-dist/coordinator.db --slots 8");
  return [flags, &program] {
    flags->options.flag_names = flag_names_of(program);
    return run(*flags);
  };
}

}  // namespace llm_dist::launch
