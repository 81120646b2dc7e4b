#include "launch/node_launcher.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <vector>

#include "comm/host/setup.h"
#include "comm/host/socket.h"
#include "launch/exit_code.h"
#include "src/base/clock.h"
#include "src/base/exit_code.h"

namespace llm_dist::launch {
namespace {

constexpr int kNotStartedExitCode = 1;
// The ranks end each other within this; who is left then has not met the others yet, or stands still.
constexpr auto kFarewell = std::chrono::seconds(3);
constexpr long kPollNanoseconds = 100'000'000;
// Signals that whoever started this process sends, for its ranks.
constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};

struct Child {
  pid_t pid = 0;
  bool ended = false;
};

// One host without an address: the ranks meet at a port that is bound before they start, under a secret that
// never leaves memory.
Status prepare_meeting(LaunchFlags& flags, comm::Listener* listener) {
  if (flags.nnodes > 1 || !flags.bootstrap.master_addr.empty()) return ok_status();
  ASSIGN_OR_RETURN(*listener,
                   comm::listen_at("127.0.0.1", static_cast<uint16_t>(flags.bootstrap.master_port)));
  flags.bootstrap.master_port = listener->endpoint.port;
  ASSIGN_OR_RETURN(comm::Secret secret, comm::draw_secret());
  flags.bootstrap.secret = comm::to_bytes(secret);
  return ok_status();
}

comm::RankFlags ranks_of(const LaunchFlags& flags, int local_rank) {
  return {.rank = flags.node_rank * flags.nproc_per_node + local_rank,
          .size = flags.nnodes * flags.nproc_per_node,
          .local_rank = local_rank,
          .local_size = flags.nproc_per_node};
}

class Ranks {
 public:
  // True in a child, whose flags then say which rank it is.
  bool start(LaunchFlags& flags) {
    comm::Listener listener;
    Status prepared = prepare_meeting(flags, &listener);
    if (!prepared.ok()) {
      std::fprintf(stderr, "llm-dist: %s\n", prepared.message().c_str());
      code_ = kNotStartedExitCode;
      return false;
    }
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGCHLD);
    for (int number : kForwarded) sigaddset(&signals_, number);
    sigset_t before;
    sigprocmask(SIG_BLOCK, &signals_, &before);
    pid_t launcher = getpid();
    for (int local_rank = 0; local_rank < flags.nproc_per_node; ++local_rank) {
      pid_t pid = fork();
      if (pid < 0) {
        std::perror("llm-dist: starting a rank");
        code_ = kNotStartedExitCode;
        return false;
      }
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != launcher) _exit(kSignalExitBase + SIGKILL);
        sigprocmask(SIG_SETMASK, &before, nullptr);
        flags.bootstrap.ranks = ranks_of(flags, local_rank);
        if (*flags.bootstrap.ranks.rank == 0 && listener.fd.valid())
          flags.bootstrap.listener_fd = dup(listener.fd.get());
        return true;
      }
      children_.push_back({.pid = pid});
    }
    return false;
  }

  int wait() {
    timespec poll{.tv_sec = 0, .tv_nsec = kPollNanoseconds};
    while (reap() > 0) {
      if (code_ != 0 && Clock::now() > failed_at_ + kFarewell) tell(SIGKILL);
      siginfo_t info{};
      int number = sigtimedwait(&signals_, &info, &poll);
      // The terminal sends its signals to the ranks itself.
      if (number > 0 && number != SIGCHLD && info.si_code != SI_KERNEL) tell(number);
    }
    return code_;
  }

 private:
  size_t reap() {
    size_t running = 0;
    for (Child& child : children_) {
      int status = 0;
      if (!child.ended && waitpid(child.pid, &status, WNOHANG) == child.pid) {
        child.ended = true;
        if (code_ == 0 && exit_code_of(status) != 0) {
          code_ = exit_code_of(status);
          failed_at_ = Clock::now();
        }
      }
      if (!child.ended) ++running;
    }
    return running;
  }
  void tell(int number) {
    for (const Child& child : children_)
      if (!child.ended) kill(child.pid, number);
  }

  std::vector<Child> children_;
  sigset_t signals_{};
  int code_ = 0;
  TimePoint failed_at_;
};

Status check(const LaunchFlags& flags) {
  if (flags.node_rank >= flags.nnodes)
    return invalid_argument(format(
        "--node-rank {} of --nnodes {}: the nodes are numbered from 0", flags.node_rank, flags.nnodes));
  if (flags.nnodes > 1 && flags.bootstrap.master_addr.empty())
    return invalid_argument("--nnodes wants --master-addr: the address of node 0, the same on every node");
  return ok_status();
}

}  // namespace

void add_launch_flags(CLI::App& app, LaunchFlags& flags) {
  auto* group = app.add_option_group("Launch without mpirun");
  auto* nnodes = group->add_option("--nnodes", flags.nnodes, "Nodes; the same command runs on each")
                     ->check(CLI::PositiveNumber);
  group->add_option("--node-rank", flags.node_rank, "Which of them this is, from 0")
      ->check(CLI::NonNegativeNumber)
      ->needs(nnodes);
  group->add_option("--nproc-per-node", flags.nproc_per_node, "Ranks to start here")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group->add_option("--master-addr",
                    flags.bootstrap.master_addr,
                    "Where rank 0 is found (under Slurm or torchrun: MASTER_ADDR)");
  group
      ->add_option("--master-port",
                   flags.bootstrap.master_port,
                   "And its port (29500; under Slurm or torchrun: MASTER_PORT)")
      ->check(CLI::Range(1, 65535));
  group->add_option("--launch-secret-file",
                    flags.bootstrap.secret_file,
                    "Holds the secret that all ranks know (or LLM_DIST_LAUNCH_SECRET)");
  group
      ->add_option(
          "--rendezvous", flags.bootstrap.transport, "How ranks find each other and talk: auto, mpi, tcp")
      ->check(CLI::IsMember({"auto", "mpi", "tcp"}))
      ->capture_default_str();
  group
      ->add_option("--rendezvous-timeout",
                   flags.rendezvous_timeout_seconds,
                   "Seconds that ranks wait for each other without mpirun")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group = app.add_option_group("Launch");
  group->add_option("--interface",
                    flags.bootstrap.interface_name,
                    "Network interface of the ranks' own sockets (default: that on which the ranks meet, or "
                    "the way to rank 0)");
  group->add_flag(
      "--allow-idle", flags.allow_idle, "Start although nodes or GPUs that Slurm has allocated stay unused");
}

int in_ranks(LaunchFlags& flags, const std::function<int()>& command) {
  bool here = flags.nnodes > 0 || flags.nproc_per_node > 1;
  if (!here) return command();
  if (flags.nnodes == 0) flags.nnodes = 1;
  if (Status status = check(flags); !status.ok()) {
    std::fprintf(stderr, "llm-dist: %s\n", status.message().c_str());
    return kRefusedExitCode;
  }
  if (flags.nproc_per_node == 1) {
    flags.bootstrap.ranks = ranks_of(flags, 0);
    return command();
  }
  Ranks ranks;
  return ranks.start(flags) ? command() : ranks.wait();
}

}  // namespace llm_dist::launch
