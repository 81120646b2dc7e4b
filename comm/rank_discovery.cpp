#include "comm/rank_discovery.h"

#include <unistd.h>

#include <charconv>

namespace llm_dist::comm {
namespace {

// Steps that Slurm numbers from the top (batch script, interactive shell, extern, pending) are no srun.
constexpr int64_t kFirstSpecialSlurmStep = 0xfffffff0;

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const { return environment_.count(name) != 0; }
  Result<int64_t> number(const std::string& name) const {
    auto found = environment_.find(name);
    if (found == environment_.end()) return invalid_argument(format("{} is not set", name));
    const std::string& text = found->second;
    int64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0)
      return invalid_argument(format("{}={} is not a number", name, text));
    return value;
  }
  // `missing` when the variable is not set.
  Result<int64_t> number_or(const std::string& name, int64_t missing) const {
    return has(name) ? number(name) : Result<int64_t>(missing);
  }
  std::string text(const std::string& name) const {
    auto found = environment_.find(name);
    return found == environment_.end() ? std::string() : found->second;
  }

 private:
  const Environment& environment_;
};

Result<RankInfo> checked(RankInfo info) {
  if (info.size < 1 || info.rank < 0 || info.rank >= info.size)
    return invalid_argument(format("{} says rank {} of {} ranks", info.source, info.rank, info.size));
  if (info.local_size < 1 || info.local_size > info.size || info.local_rank < 0 ||
      info.local_rank >= info.local_size)
    return invalid_argument(format("{} says local rank {} of {} on a world of {}",
                                   info.source,
                                   info.local_rank,
                                   info.local_size,
                                   info.size));
  return info;
}

// The variables of a launcher, by name. An unset local pair means one rank a host.
struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

Result<RankInfo> from_names(const Reader& reader, const Names& names, RankSource source) {
  ASSIGN_OR_RETURN(int64_t rank, reader.number(names.rank));
  ASSIGN_OR_RETURN(int64_t size, reader.number(names.size));
  ASSIGN_OR_RETURN(int64_t local_rank, reader.number_or(names.local_rank, 0));
  ASSIGN_OR_RETURN(int64_t local_size, reader.number_or(names.local_size, local_rank + 1));
  return checked({static_cast<int>(rank),
                  static_cast<int>(size),
                  static_cast<int>(local_rank),
                  static_cast<int>(local_size),
                  source});
}

Result<RankInfo> from_flags(const RankFlags& flags) {
  if (!flags.rank || !flags.size) return invalid_argument("a rank and a world size are given together");
  int local_rank = flags.local_rank.value_or(0);
  return checked(
      {*flags.rank, *flags.size, local_rank, flags.local_size.value_or(local_rank + 1), RankSource::kFlags});
}

// "2(x3),1" is 2 tasks on nodes 0–2 and 1 on node 3. 0 when `text` does not say.
int64_t tasks_of_node(std::string_view text, int64_t node) {
  while (!text.empty()) {
    size_t comma = text.find(',');
    std::string_view group = text.substr(0, comma);
    int64_t tasks = 0;
    int64_t nodes = 1;
    auto [end, error] = std::from_chars(group.data(), group.data() + group.size(), tasks);
    if (error != std::errc()) return 0;
    std::string_view rest = group.substr(static_cast<size_t>(end - group.data()));
    if (rest.starts_with("(x") && rest.ends_with(")"))
      std::from_chars(rest.data() + 2, rest.data() + rest.size() - 1, nodes);
    if (node < nodes) return tasks;
    node -= nodes;
    if (comma == std::string_view::npos) return 0;
    text.remove_prefix(comma + 1);
  }
  return 0;
}

bool is_slurm_step(const Reader& reader) {
  if (!reader.has("SLURM_STEP_ID") || !reader.has("SLURM_STEP_NUM_TASKS")) return false;
  auto step = reader.number("SLURM_STEP_ID");
  return step.ok() && *step < kFirstSpecialSlurmStep;
}

Result<RankInfo> from_slurm(const Reader& reader) {
  ASSIGN_OR_RETURN(int64_t rank, reader.number("SLURM_PROCID"));
  ASSIGN_OR_RETURN(int64_t size, reader.number("SLURM_STEP_NUM_TASKS"));
  ASSIGN_OR_RETURN(int64_t local_rank, reader.number_or("SLURM_LOCALID", 0));
  ASSIGN_OR_RETURN(int64_t node, reader.number_or("SLURM_NODEID", 0));
  int64_t local_size = tasks_of_node(reader.text("SLURM_STEP_TASKS_PER_NODE"), node);
  if (local_size == 0) local_size = local_rank + 1;
  return checked({static_cast<int>(rank),
                  static_cast<int>(size),
                  static_cast<int>(local_rank),
                  static_cast<int>(local_size),
                  RankSource::kSlurmStep});
}

}  // namespace

std::string_view to_string(RankSource source) {
  switch (source) {
    case RankSource::kSingle: return "single process";
    case RankSource::kFlags: return "flags";
    case RankSource::kOpenMpi: return "Open MPI";
    case RankSource::kSlurmStep: return "Slurm step";
    case RankSource::kTorchrun: return "torchrun";
  }
  return "unknown";
}

Environment read_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

Result<RankInfo> discover_ranks(const RankFlags& flags, const Environment& environment) {
  Reader reader(environment);
  if (flags.rank || flags.size) return from_flags(flags);
  if (reader.has("OMPI_COMM_WORLD_RANK"))
    return from_names(reader,
                      {"OMPI_COMM_WORLD_RANK",
                       "OMPI_COMM_WORLD_SIZE",
                       "OMPI_COMM_WORLD_LOCAL_RANK",
                       "OMPI_COMM_WORLD_LOCAL_SIZE"},
                      RankSource::kOpenMpi);
  if (is_slurm_step(reader)) return from_slurm(reader);
  if (reader.has("RANK") && reader.has("WORLD_SIZE"))
    return from_names(
        reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, RankSource::kTorchrun);
  // Without a size it is no use, and serving alone N times is worse than not starting.
  if (reader.has("PMIX_RANK"))
    return invalid_argument(
        "PMIX_RANK is set, but nothing says how many ranks there are: start with mpirun or "
        "srun, or give rank and world size as flags");
  return RankInfo{};
}

}  // namespace llm_dist::comm
