#include "comm/bootstrap.h"

#include <sys/stat.h>

#include <charconv>

#include "comm/tcp/tcp_world.h"
#include "src/base/small_file.h"

namespace llm_dist::comm {
namespace {

constexpr const char* kSecretVariable = "LLM_DIST_LAUNCH_SECRET";
constexpr const char* kThisHost = "127.0.0.1";
// Ports for Slurm steps, below the range that Linux hands out by itself (32768 and up).
constexpr int64_t kFirstStepPort = 15000;
constexpr int64_t kStepPorts = 17000;
constexpr int64_t kStepsOfJob = 7;  // so that steps of a job, and jobs one after another, differ

std::string variable(const Environment& environment, const std::string& name) {
  auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

Result<int> parse_port(const std::string& name, const std::string& text) {
  int port = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || port < 1 || port > 65535) return invalid_argument(format("{}={} is not a port", name, text));
  return port;
}

Result<std::string> read_secret_file(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0)
    return not_found(format("--launch-secret-file {} cannot be read", path));
  if ((info.st_mode & 077) != 0)
    return failed_precondition(
        format("--launch-secret-file {} can be read by others: chmod 600 {}", path, path));
  Result<std::string> read = read_small_file(path);
  if (!read.ok()) return read.status().with_context("--launch-secret-file");
  const std::string secret = read->substr(0, read->find('\n'));
  if (secret.empty()) return invalid_argument(format("--launch-secret-file {} is empty", path));
  return secret;
}

Result<std::string> find_secret(const BootstrapFlags& flags, const Environment& environment) {
  if (!flags.secret.empty()) return flags.secret;
  if (!flags.secret_file.empty()) return read_secret_file(flags.secret_file);
  return variable(environment, kSecretVariable);
}

bool has_mpi_wires(const Environment& environment) {
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "PMI_FD"})
    if (environment.count(name) != 0) return true;
  return false;
}

Result<bool> goes_over_tcp(const RankInfo& info, const std::string& asked, const Environment& environment) {
  if (asked == "mpi") return false;
  if (asked == "tcp") return true;
  if (asked != "auto") return invalid_argument(format("--rendezvous {} is not one of auto, mpi, tcp", asked));
  switch (info.source) {
    case RankSource::kOpenMpi: return false;
    case RankSource::kSlurmStep: return !has_mpi_wires(environment);
    default: return true;
  }
}

struct Place {
  std::string address;
  int port = 0;
};

Result<Place> variables_place(const Environment& environment) {
  Place place{.address = variable(environment, "MASTER_ADDR"), .port = 0};
  if (std::string port = variable(environment, "MASTER_PORT"); !port.empty()) {
    ASSIGN_OR_RETURN(place.port, parse_port("MASTER_PORT", port));
    // torchrun's own store listens at MASTER_PORT then.
    if (variable(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True") ++place.port;
  }
  return place;
}

int64_t number(const Environment& environment, const std::string& name) {
  std::string text = variable(environment, name);
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Place slurm_place(const Environment& environment) {
  std::string nodes = variable(environment, "SLURM_STEP_NODELIST");
  bool one_node = variable(environment, "SLURM_STEP_NUM_NODES") == "1";
  int64_t launch = number(environment, "SLURM_JOB_ID") * kStepsOfJob + number(environment, "SLURM_STEP_ID");
  return {.address = one_node ? kThisHost : first_host(nodes),
          .port = static_cast<int>(kFirstStepPort + launch % kStepPorts)};
}

Result<Place> find_place(const BootstrapFlags& flags, const RankInfo& info, const Environment& environment) {
  ASSIGN_OR_RETURN(Place place, variables_place(environment));
  if (info.source == RankSource::kFlags) place = {};  // flags and the environment are not mixed
  if (!flags.master_addr.empty()) place.address = flags.master_addr;
  if (flags.master_port > 0) place.port = flags.master_port;
  if (info.source == RankSource::kSlurmStep) {
    Place step = slurm_place(environment);
    if (place.address.empty()) place.address = step.address;
    if (place.port == 0) place.port = step.port;
  }
  if (place.address.empty() && info.local_size == info.size) place.address = kThisHost;
  if (place.port == 0) place.port = kDefaultMasterPort;
  if (place.address.empty())
    return invalid_argument(format(
        "{} ranks ({}) on several hosts need the address of rank 0's host: --master-addr, or MASTER_ADDR",
        info.size,
        info.source));
  return place;
}

}  // namespace

std::string first_host(const std::string& node_list) {
  size_t bracket = node_list.find('[');
  size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  size_t end = node_list.find_first_of("-,]", bracket);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1);
}

Result<Bootstrap> plan_bootstrap(const BootstrapFlags& flags, const Environment& environment) {
  Bootstrap bootstrap;
  ASSIGN_OR_RETURN(bootstrap.ranks, discover_ranks(flags.ranks, environment));
  const RankInfo& info = bootstrap.ranks;
  if (info.size == 1) return bootstrap;
  ASSIGN_OR_RETURN(bootstrap.over_tcp, goes_over_tcp(info, flags.transport, environment));
  if (!bootstrap.over_tcp) return bootstrap;
  ASSIGN_OR_RETURN(Place place, find_place(flags, info, environment));
  MeetingPlan& meeting = bootstrap.meeting;
  meeting.rank = info.rank;
  meeting.size = info.size;
  meeting.address = place.address;
  meeting.port = static_cast<uint16_t>(place.port);
  meeting.interface_name = flags.interface_name;
  meeting.listener_fd = info.rank == 0 ? flags.listener_fd : -1;
  ASSIGN_OR_RETURN(meeting.secret, find_secret(flags, environment));
  return bootstrap;
}

Result<std::unique_ptr<World>> make_world(const Bootstrap& bootstrap, const WorldOptions& options) {
  if (!bootstrap.over_tcp) return make_world(bootstrap.ranks, options);
  return make_tcp_world(
      bootstrap.meeting, Deadline::after(options.meeting_timeout), bootstrap.ranks, options);
}

}  // namespace llm_dist::comm
