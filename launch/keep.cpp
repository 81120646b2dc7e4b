// `llm-dist keep`: runs one command for the coordinator and sees to its end, whatever becomes of the
// coordinator. Not for people.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "cluster/local_launcher.h"
#include "cluster/store/location.h"
#include "cluster/world_folder.h"
#include "launch/commands.h"
#include "launch/exit_code.h"
#include "launch/whole_file.h"
#include "src/base/clock.h"
#include "src/base/format.h"
#include "src/base/log.h"

namespace llm_dist::launch {
namespace {

constexpr int kCannotStart = 127;
constexpr auto kPoll = std::chrono::milliseconds(200);
constexpr auto kGrace = std::chrono::seconds(10);      // after the first polite request
constexpr auto kStragglers = std::chrono::seconds(2);  // for what its command leaves behind

struct KeepFlags {
  std::string folder;
  std::string owner;
  int orphan_seconds = 60;
  std::vector<std::string> command;
};

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  std::ifstream file(format("/proc/{}/task/{}/children", pid, pid));
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

void signal_descendants(pid_t of, int number) {
  for (pid_t child : children_of(of)) {
    signal_descendants(child, number);
    kill(child, number);
  }
}

class Keeper {
 public:
  explicit Keeper(KeepFlags flags) : flags_(std::move(flags)) {
    sigemptyset(&signals_);
    for (int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&signals_, number);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
    // Ranks that lose their mpirun become children of this process, so that none is lost.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }

  int run() {
    start();
    timespec poll{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kPoll).count()};
    while (!reap()) {
      int number = sigtimedwait(&signals_, nullptr, &poll);
      if (number == SIGQUIT) kill_at_ = Clock::now();
      if (number == SIGTERM || number == SIGINT || number == SIGHUP) ask_to_end();
      if (orphaned()) ask_to_end();
      if (kill_at_ && Clock::now() >= *kill_at_) signal_descendants(getpid(), SIGKILL);
    }
    cluster::remove_world_folder(flags_.folder);
    write_exit();
    return code_;
  }

 private:
  void start() {
    command_ = fork();
    if (command_ < 0) {
      std::perror("llm-dist: starting the command");
      command_ = 0;
      code_ = kCannotStart;
    }
    if (command_ != 0 || code_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_UNBLOCK, &signals_, nullptr);
    std::vector<char*> words;
    words.reserve(flags_.command.size() + 1);
    for (std::string& word : flags_.command) words.push_back(word.data());
    words.push_back(nullptr);
    execvp(words[0], words.data());
    std::fprintf(stderr, "cannot start %s: %s\n", words[0], strerror(errno));
    _exit(kCannotStart);
  }

  // Takes in every child that has ended. True once none is left.
  bool reap() {
    while (true) {
      int status = 0;
      pid_t ended = waitpid(-1, &status, WNOHANG);
      if (ended == 0) return false;
      if (ended < 0) return true;
      if (ended != command_) continue;
      code_ = exit_code_of(status);
      command_ = 0;
      signal_descendants(getpid(), SIGTERM);
      TimePoint latest = Clock::now() + kStragglers;
      if (!kill_at_ || latest < *kill_at_) kill_at_ = latest;
    }
  }

  void ask_to_end() {
    if (command_ > 0) kill(command_, SIGTERM);
    if (!kill_at_) kill_at_ = Clock::now() + kGrace;
  }

  bool orphaned() {
    if (cluster::StoreLock::is_held(flags_.owner)) {
      alone_since_.reset();
      return false;
    }
    if (!alone_since_) alone_since_ = Clock::now();
    return Clock::now() - *alone_since_ >= std::chrono::seconds(flags_.orphan_seconds) && !kill_at_;
  }

  void write_exit() {
    Status written = write_whole_file(cluster::exit_file_of(flags_.folder), format("{}\n", code_));
    if (!written.ok()) log_error("{}", written.message());
  }

  KeepFlags flags_;
  sigset_t signals_;
  pid_t command_ = 0;
  int code_ = 0;
  std::optional<TimePoint> kill_at_;
  std::optional<TimePoint> alone_since_;
};

}  // namespace

RunCommand add_keep(CLI::App& program) {
  auto flags = std::make_shared<KeepFlags>();
  CLI::App* app = program.add_subcommand("keep", "Run one command for the coordinator");
  app->group("");  // in no list of commands
  app->add_option("--folder", flags->folder, "Of the attempt: the exit code is written there")->required();
  app->add_option("--owner", flags->owner, "The store whose coordinator this command belongs to")->required();
  app->add_option(
      "--orphan-seconds", flags->orphan_seconds, "Without a coordinator, then the command is ended");
  app->add_option("command", flags->command, "The command and its arguments")->required();
  return [flags] { return Keeper(*flags).run(); };
}

}  // namespace llm_dist::launch
