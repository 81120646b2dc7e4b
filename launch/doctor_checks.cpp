#include "launch/doctor_checks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "src/base/format.h"
#include "src/engine/memory_plan.h"

namespace llm_dist::launch {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLeastShm = 256 * kMiB;
constexpr int64_t kLeastOpenFiles = 4096;
constexpr int64_t kLeastMemory = 512 * kMiB;
constexpr int64_t kSlowNetworkMegabits = 10000;
constexpr double kMostSkewSeconds = 1.0;

struct Verdict {
  Severity severity = Severity::kOk;
  std::string message;
  std::string advice;

  auto operator<=>(const Verdict&) const = default;
};

std::set<std::string> hosts_of(const std::vector<RankFacts>& ranks) {
  std::set<std::string> hosts;
  for (const RankFacts& rank : ranks) hosts.insert(rank.host);
  return hosts;
}

// "0-3, 6"
std::string list_of(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    text += format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (end > i) text += format("-{}", numbers[end]);
    i = end + 1;
  }
  return text;
}

// Each rank's verdict; equal ones become one finding that says whom it is about.
void per_rank(const std::vector<RankFacts>& ranks,
              const std::string& check,
              const std::function<Verdict(const RankFacts&)>& judge,
              std::vector<Finding>& findings) {
  std::map<Verdict, std::vector<int>> by_verdict;
  for (const RankFacts& rank : ranks) by_verdict[judge(rank)].push_back(rank.rank);
  for (const auto& [verdict, members] : by_verdict) {
    if (verdict.message.empty()) continue;
    std::string where = by_verdict.size() == 1 ? "" : format("ranks {}", list_of(members));
    findings.push_back({verdict.severity, check, where, verdict.message, verdict.advice});
  }
}

void check_ranks(const std::vector<RankFacts>& ranks,
                 const Measured& measured,
                 std::vector<Finding>& findings) {
  std::map<std::string, int> per_host;
  for (const RankFacts& rank : ranks) ++per_host[rank.host];
  std::string hosts;
  std::set<int> counts;
  for (const auto& [host, count] : per_host) {
    hosts += format("{}{} {}", hosts.empty() ? "" : ", ", host, count);
    counts.insert(count);
  }
  Finding finding{.check = "ranks", .message = "one process on " + ranks.front().host};
  if (ranks.size() > 1)
    finding.message = format("{} ({}), they met over {}; ranks of each host: {}",
                             ranks.size(),
                             measured.launcher,
                             measured.rendezvous,
                             hosts);
  if (counts.size() > 1) {
    finding.severity = Severity::kWarning;
    finding.advice =
        "start as many ranks on every host (mpirun --map-by ppr:N:node, srun --ntasks-per-node=N): tensor "
        "groups "
        "stay inside a host, and the host with the fewest ranks bounds them";
  }
  findings.push_back(finding);
  if (measured.channel != "none" && !measured.channel.empty())
    findings.push_back({.check = "channel", .message = format("step plans go over {}", measured.channel)});
}

void check_program(const std::vector<RankFacts>& ranks,
                   const Measured& measured,
                   std::vector<Finding>& findings) {
  std::set<std::string> versions;
  std::set<std::string> libraries;
  for (const RankFacts& rank : ranks) {
    versions.insert(rank.version);
    libraries.insert(rank.mpi);
  }
  if (versions.size() > 1)
    per_rank(
        ranks,
        "version",
        [](const RankFacts& rank) -> Verdict {
          return {Severity::kError, "llm-dist " + rank.version, "install the same llm-dist on every host"};
        },
        findings);
  bool needed = measured.rendezvous == "mpi";
  if (needed && libraries.size() > 1)
    findings.push_back({Severity::kError,
                        "mpi",
                        "",
                        "the ranks load different MPI libraries",
                        "install one version, or load one module, on every host"});
  per_rank(
      ranks,
      "mpi",
      [&](const RankFacts& rank) -> Verdict {
        if (!rank.mpi.empty()) return {Severity::kOk, rank.mpi, ""};
        return {Severity::kNote,
                format("none: {}", rank.mpi_missing),
                "not needed: ranks can meet over TCP (--nnodes, srun without --mpi, torchrun)"};
      },
      findings);
}

Verdict judge_network(const RankFacts& rank) {
  std::string names;
  int64_t fastest = 0;
  bool known = true;
  for (const InterfaceFact& one : rank.interfaces) {
    names += format("{}{}", names.empty() ? "" : ", ", one.name);
    if (one.megabits > 0) names += format(" {} Mbit/s", one.megabits);
    known = known && one.megabits > 0;
    fastest = std::max(fastest, one.megabits);
  }
  if (rank.interfaces.empty())
    return {Severity::kError,
            "no network interface is up but the loopback",
            "other hosts cannot be reached: see `ip address`"};
  bool slow = known && fastest < kSlowNetworkMegabits;
  if (slow)
    return {Severity::kWarning,
            names,
            "activations cross this between stages: use the fast network (--interface)"};
  std::string advice = rank.interfaces.size() > 1 ? "--interface NAME chooses for the control sockets" : "";
  return {Severity::kOk, names, advice};
}

Verdict judge_shm(const RankFacts& rank) {
  if (rank.shm_free_bytes < 0)
    return {
        Severity::kError, "/dev/shm is missing", "mount a tmpfs there: MPI and NCCL need it inside a host"};
  if (rank.shm_free_bytes < kLeastShm)
    return {Severity::kWarning,
            format("/dev/shm is below {}", engine::human_bytes(kLeastShm)),
            "MPI and NCCL may fail: docker run --shm-size=1g or --ipc=host; remove what dead programs left "
            "there"};
  return {Severity::kOk, format("/dev/shm has {} at least", engine::human_bytes(kLeastShm)), ""};
}

Verdict judge_memlock(const RankFacts& rank, bool matters) {
  if (rank.memlock_bytes < 0) return {Severity::kOk, "unlimited", ""};
  return {
      matters ? Severity::kWarning : Severity::kNote,
      engine::human_bytes(rank.memlock_bytes),
      "RDMA and pinned memory want it unlimited: ulimit -l unlimited; in Slurm PropagateResourceLimitsExcept="
      "MEMLOCK and LimitMEMLOCK=infinity for slurmd"};
}

Verdict judge_open_files(const RankFacts& rank) {
  if (rank.open_files < 0 || rank.open_files >= kLeastOpenFiles) return {Severity::kOk, "enough", ""};
  return {Severity::kWarning,
          format("{} open files", rank.open_files),
          format("every client and every rank takes one: ulimit -n {}", 16 * kLeastOpenFiles)};
}

Verdict judge_memory(const RankFacts& rank, size_t world_size) {
  int64_t share = std::min(rank.memory_free_bytes / std::max(1, rank.local_size), rank.one_rank_bytes);
  std::string found =
      format("a rank may take about {}", engine::human_bytes(share / (64 * kMiB) * (64 * kMiB)));
  int64_t needed = rank.model.bytes / static_cast<int64_t>(std::max<size_t>(1, world_size)) + kLeastMemory;
  if (share >= needed) return {Severity::kOk, found, ""};
  return {Severity::kError,
          format("{}, and needs {}", found, engine::human_bytes(needed)),
          "ask for more memory (srun --mem, the container's limit, ulimit -v), or start more ranks"};
}

void check_binding(const std::vector<RankFacts>& ranks, std::vector<Finding>& findings) {
  std::map<std::string, std::vector<const RankFacts*>> by_host;
  for (const RankFacts& rank : ranks) by_host[rank.host].push_back(&rank);
  for (const auto& [host, members] : by_host) {
    std::map<int, std::vector<int>> users;
    for (const RankFacts* rank : members)
      for (int cpu : rank->cpus) users[cpu].push_back(rank->rank);
    bool all_share = std::all_of(members.begin(), members.end(), [](const RankFacts* rank) {
      return static_cast<int>(rank->cpus.size()) >= rank->machine_cpus;
    });
    size_t distinct = users.size();
    if (members.size() > distinct) {
      findings.push_back(
          {Severity::kWarning,
           "binding",
           host,
           format("{} ranks on {} CPUs", members.size(), distinct),
           "they take turns: start fewer ranks there, or ask for more CPUs (--cpus-per-task)"});
      continue;
    }
    auto shared =
        std::find_if(users.begin(), users.end(), [](const auto& user) { return user.second.size() > 1; });
    if (!all_share && shared != users.end()) {
      findings.push_back({Severity::kWarning,
                          "binding",
                          host,
                          format("ranks {} are bound to the same CPUs", list_of(shared->second)),
                          "mpirun --bind-to none (llm-dist divides the CPUs), srun --cpu-bind=none or "
                          "--cpus-per-task"});
      continue;
    }
    double quota = members.front()->quota_cpus;
    std::string limit = quota > 0 ? format(", {} CPUs' time by the cgroup", quota) : std::string();
    findings.push_back({Severity::kOk,
                        "binding",
                        host,
                        format("{} CPUs for {} ranks{}{}",
                               distinct,
                               members.size(),
                               all_share ? ", which llm-dist divides" : "",
                               limit),
                        ""});
  }
}

Verdict judge_gpus(const RankFacts& rank) {
  if (!rank.gpu_missing.empty() && rank.allocated_gpus == 0)
    return {Severity::kNote, "none: " + rank.gpu_missing, ""};
  if (rank.gpus_visible == 0 && rank.allocated_gpus > 0)
    return {Severity::kError,
            format("{} are allocated and none is visible {}", rank.allocated_gpus, rank.gpu_missing),
            "is llm-dist built with CUDA, is the driver visible (containers: --nv, --gpus all)?"};
  if (rank.gpus_visible == 0) return {Severity::kNote, "none", ""};
  if (rank.gpus_visible == 1 && rank.local_size > 1)
    return {Severity::kWarning,
            "one GPU is visible to each rank of a host",
            "peer access and NVLink need to see each other: srun --gpus-per-node instead of --gpus-per-task"};
  if (rank.gpus_visible < rank.local_size)
    return {Severity::kError,
            format("{} GPUs for {} ranks of a host", rank.gpus_visible, rank.local_size),
            "start as many ranks as there are GPUs"};
  if (!rank.gpu_trouble.empty()) return {Severity::kError, rank.gpu_trouble, "run on the CPU: --device cpu"};
  return {Severity::kOk, format("{} visible", rank.gpus_visible), ""};
}

Verdict judge_model(const RankFacts& rank, int64_t bytes_on_rank_0, bool many_hosts) {
  const FileFact& model = rank.model;
  if (model.path.empty()) return {};
  if (!model.exists)
    return {Severity::kError,
            format("{} cannot be read", model.path),
            "every host reads it: put it on a shared file system, or at the same path everywhere"};
  if (model.bytes != bytes_on_rank_0)
    return {Severity::kError,
            format("{} has {} bytes, on rank 0 {}", model.path, model.bytes, bytes_on_rank_0),
            "copy it again: the hosts hold different models"};
  std::string found = format("{} on {}, {}", model.path, model.file_system, engine::human_bytes(model.bytes));
  bool remote = model.file_system == "nfs" || model.file_system == "cifs" || model.file_system == "fuse" ||
                model.file_system == "9p";
  if (remote)
    return {Severity::kNote,
            found,
            "loading is as fast as that file server; a local copy or a parallel file system is faster"};
  if (model.file_system == "tmpfs" && many_hosts)
    return {Severity::kNote, found, "it is in memory, which the ranks then lack"};
  return {Severity::kOk, found, ""};
}

Verdict judge_cache(const RankFacts& rank) {
  const FileFact& cache = rank.cache;
  if (cache.path.empty())
    return {Severity::kNote, "HOME is not set", "set XDG_CACHE_HOME to a folder of yours"};
  if (!cache.exists) return {Severity::kOk, format("{} does not exist yet", cache.path), ""};
  if (!cache.writable)
    return {Severity::kWarning,
            format("{} cannot be written", cache.path),
            "set XDG_CACHE_HOME to a folder of yours"};
  return {Severity::kOk, format("{} on {}", cache.path, cache.file_system), ""};
}

void check_clocks(const std::vector<RankFacts>& ranks,
                  const Measured& measured,
                  std::vector<Finding>& findings) {
  if (measured.clock_skew_seconds.size() != ranks.size() || ranks.size() < 2) return;
  double most = 0;
  size_t who = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    double skew = std::fabs(measured.clock_skew_seconds[r]);
    if (skew > most) most = skew, who = r;
  }
  bool bad = most > kMostSkewSeconds + measured.clock_uncertainty_seconds;
  findings.push_back(
      {bad ? Severity::kWarning : Severity::kOk,
       "clock",
       bad ? ranks[who].host : "",
       bad ? format("{} ms away from rank 0's", std::llround(most * 1e3))
           : format("within {} ms",
                    std::llround(std::ceil((most + measured.clock_uncertainty_seconds) * 1e3))),
       bad ? "logs and traces will not line up: run chrony or ntpd there" : ""});
}

void check_collectives(const Measured& measured, size_t world_size, std::vector<Finding>& findings) {
  if (world_size < 2) return;
  if (!measured.all_reduce_error.empty()) {
    findings.push_back({Severity::kError,
                        "collectives",
                        "",
                        measured.all_reduce_error,
                        "run it again with --log-level debug (and NCCL_DEBUG=INFO on GPUs)"});
    return;
  }
  findings.push_back({Severity::kOk,
                      "collectives",
                      "",
                      format("all-reduce on {}: {} µs for 16 KiB, {} MB/s for 32 MiB; barrier {} µs",
                             measured.device,
                             std::llround(measured.all_reduce_small_us),
                             std::llround(measured.all_reduce_bytes_per_second * 1e-6),
                             std::llround(measured.barrier_us)),
                      ""});
}

}  // namespace

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::kOk: return "ok";
    case Severity::kNote: return "note";
    case Severity::kWarning: return "warning";
    case Severity::kError: return "error";
  }
  return "unknown";
}

std::vector<Finding> examine(const std::vector<RankFacts>& ranks, const Measured& measured, bool allow_idle) {
  std::vector<Finding> findings;
  bool many_hosts = hosts_of(ranks).size() > 1;
  bool gpus =
      std::any_of(ranks.begin(), ranks.end(), [](const RankFacts& rank) { return rank.gpus_visible > 0; });
  check_ranks(ranks, measured, findings);
  per_rank(
      ranks,
      "idle",
      [&](const RankFacts& rank) -> Verdict {
        if (rank.idle.empty()) return {};
        return {allow_idle ? Severity::kNote : Severity::kError,
                rank.idle,
                "use them, ask for fewer, or say --allow-idle"};
      },
      findings);
  check_program(ranks, measured, findings);
  if (many_hosts) per_rank(ranks, "network", judge_network, findings);
  per_rank(ranks, "shm", judge_shm, findings);
  per_rank(
      ranks,
      "memlock",
      [&](const RankFacts& rank) { return judge_memlock(rank, many_hosts || gpus); },
      findings);
  per_rank(ranks, "open files", judge_open_files, findings);
  per_rank(
      ranks, "memory", [&](const RankFacts& rank) { return judge_memory(rank, ranks.size()); }, findings);
  check_binding(ranks, findings);
  per_rank(ranks, "gpus", judge_gpus, findings);
  check_clocks(ranks, measured, findings);
  int64_t bytes = ranks.front().model.bytes;
  per_rank(
      ranks, "model", [&](const RankFacts& rank) { return judge_model(rank, bytes, many_hosts); }, findings);
  per_rank(ranks, "cache", judge_cache, findings);
  if (!measured.device_error.empty())
    findings.push_back({Severity::kError, "device", "", measured.device_error, "--device cpu goes without"});
  check_collectives(measured, ranks.size(), findings);
  return findings;
}

Severity worst(const std::vector<Finding>& findings) {
  Severity severity = Severity::kOk;
  for (const Finding& finding : findings) severity = std::max(severity, finding.severity);
  return severity;
}

}  // namespace llm_dist::launch
