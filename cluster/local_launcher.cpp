#include "cluster/local_launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "cluster/world_folder.h"
#include "src/base/clock.h"
#include "src/base/format.h"
#include "src/base/log.h"

namespace llm_dist::cluster {
namespace {

constexpr auto kEndOfKilled = std::chrono::seconds(1);
constexpr auto kBetweenLooks = std::chrono::milliseconds(10);
constexpr std::streamoff kEndOfLog = 64 << 10;
constexpr size_t kLongestWords = 2000;

// A process by what no other one ever shares: its id and when it started.
struct Process {
  pid_t pid = 0;
  std::string start;

  std::string handle() const { return format("{} {}", pid, start); }
  static Process parse(const std::string& handle) {
    Process process;
    std::istringstream(handle) >> process.pid >> process.start;
    return process;
  }
};

// not_found: there is no such file, and in /proc no such process. Any other error says nothing of either:
// perhaps this process has no descriptor left.
Result<std::string> read_whole(const std::string& path) {
  auto failed = [&path](int error) {
    const bool gone = error == ENOENT || error == ESRCH;
    const bool denied = error == EACCES || error == EPERM;
    return Status(gone     ? StatusCode::kNotFound
                  : denied ? StatusCode::kFailedPrecondition
                           : StatusCode::kUnavailable,
                  format("{}: {}", path, strerror(error)));
  };
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return failed(errno);
  std::string text;
  std::array<char, 4096> piece;
  ssize_t bytes = 0;
  while ((bytes = read(file, piece.data(), piece.size())) > 0) text.append(piece.data(), bytes);
  const int error = errno;
  close(file);
  if (bytes < 0) return failed(error);
  return text;
}

// proc(5): field 3 is the state, field 22 the start, counted after the name in parentheses.
struct Stat {
  std::string state;
  std::string start;
};
Result<Stat> read_stat(pid_t pid) {
  if (pid <= 0) return not_found(format("{} is no process", pid));
  ASSIGN_OR_RETURN(std::string text, read_whole(format("/proc/{}/stat", pid)));
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  constexpr size_t kStart = 22 - 3;
  if (words.size() <= kStart) return internal_error(format("/proc/{}/stat: '{}'", pid, text));
  return Stat{words[0], words[kStart]};
}

// An error: it is not known.
Result<bool> is_alive(const Process& process) {
  Result<Stat> stat = read_stat(process.pid);
  if (stat.status().code() == StatusCode::kNotFound) return false;
  RETURN_IF_ERROR(stat.status());
  return stat->start == process.start && stat->state != "Z";
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

// Binds this thread, for what it starts meanwhile: a process has the cores of the thread that started it,
// from its first instruction on.
class BoundTo {
 public:
  explicit BoundTo(const std::vector<int>& cpus) {
    if (cpus.empty() || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
    bound_ = sched_setaffinity(0, sizeof set, &set) == 0;
    if (!bound_) log_warning("what runs on cores {}… is bound to none: {}", cpus.front(), strerror(errno));
  }
  ~BoundTo() {
    if (bound_) sched_setaffinity(0, sizeof before_, &before_);
  }
  BoundTo(const BoundTo&) = delete;
  BoundTo& operator=(const BoundTo&) = delete;

 private:
  cpu_set_t before_{};
  bool bound_ = false;
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

// Only what a program needs to run: nothing of a batch system's or an MPI's that the coordinator was started
// under, and no GPU but those of its slots.
std::vector<std::string> clean_environment(const LaunchRequest& request,
                                           const std::vector<std::string>& gpus) {
  constexpr const char* kKept[] = {"PATH",
                                   "HOME",
                                   "USER",
                                   "LANG",
                                   "TZ",
                                   "TMPDIR",
                                   "LD_LIBRARY_PATH",
                                   "CUDA_DEVICE_ORDER",
                                   "SSL_CERT_FILE",
                                   "SSL_CERT_DIR"};
  std::vector<std::string> environment;
  for (const char* name : kKept) {
    if (const char* value = std::getenv(name)) environment.push_back(format("{}={}", name, value));
  }
  environment.push_back("CUDA_VISIBLE_DEVICES=" + joined(gpus));
  environment.push_back(format("{}={}", kMarkVariable, request.mark));
  for (const auto& [name, value] : request.environment) environment.push_back(format("{}={}", name, value));
  return environment;
}

class LocalLauncher : public Launcher {
 public:
  explicit LocalLauncher(LocalLauncherOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return "local"; }
  Slots slots() const override { return options_.slots.free_slots(); }
  Result<std::string> launch(const LaunchRequest& request) override;
  Result<Observation> observe(const std::string& handle, const std::string& folder) override;
  Status stop(const std::string& handle, StopMode mode) override;
  Result<int> sweep(const std::string& mark, const std::string& folder) override;

 private:
  std::vector<std::string> command(const LaunchRequest& request) const;
  LocalLauncherOptions options_;
};

std::vector<std::string> LocalLauncher::command(const LaunchRequest& request) const {
  std::vector<std::string> words = {options_.program,
                                    "keep",
                                    "--folder",
                                    request.folder,
                                    "--owner",
                                    options_.store_path,
                                    "--orphan-seconds",
                                    std::to_string(options_.orphan_seconds),
                                    "--"};
  if (request.num_ranks > 1) {
    words.insert(words.end(), {"mpirun", "-np", std::to_string(request.num_ranks), "--bind-to", "none"});
    words.emplace_back("--oversubscribe");  // the slots are counted here, not by mpirun
    if (getuid() == 0) words.emplace_back("--allow-run-as-root");
  }
  words.push_back(options_.program);
  words.insert(words.end(), request.arguments.begin(), request.arguments.end());
  return words;
}

// A spawn's attributes and file actions, destroyed with it.
struct Spawn {
  explicit Spawn(const std::string& log_file) {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(
        &actions, STDOUT_FILENO, log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, S_IRUSR | S_IWUSR);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~Spawn() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

Result<std::string> LocalLauncher::launch(const LaunchRequest& request) {
  std::error_code error;
  std::filesystem::create_directories(request.folder, error);
  if (error) return failed_precondition(format("{}: {}", request.folder, error.message()));
  std::vector<std::string> words = command(request);
  std::vector<std::string> environment = clean_environment(request, options_.slots.gpus_of(request.slots));
  if (request.num_ranks > 1) {
    ASSIGN_OR_RETURN(std::string world, make_world_folder(request.folder));
    for (const auto& [name, value] : world_folder_variables(world)) {
      environment.push_back(format("{}={}", name, value));
    }
  }
  Spawn spawn(log_file_of(request.folder));
  pid_t pid = 0;
  int failed = 0;
  {
    BoundTo bound(options_.slots.cpus_of(request.slots));
    failed = posix_spawn(&pid,
                         options_.program.c_str(),
                         &spawn.actions,
                         &spawn.attributes,
                         pointers(words).data(),
                         pointers(environment).data());
  }
  if (failed != 0) {
    remove_world_folder(request.folder);
    return failed_precondition(format("cannot start {}: {}", options_.program, strerror(failed)));
  }
  // posix_spawn() takes no limits. The keeper is told before it has loaded its libraries, and passes them on;
  // one that was faster runs its command with more than that command needs.
  if (options_.open_files) prlimit(pid, RLIMIT_NOFILE, &*options_.open_files, nullptr);
  Result<Stat> stat = read_stat(pid);
  if (!stat.ok()) {
    // Nobody would find it again. What it may have started by now is of its group still.
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return stat.status();
  }
  return Process{pid, stat->start}.handle();
}

Result<Observation> LocalLauncher::observe(const std::string& handle, const std::string& folder) {
  Process process = Process::parse(handle);
  // A child of this process stays a zombie until it is asked after; a former coordinator's is none of ours.
  if (process.pid > 0) waitpid(process.pid, nullptr, WNOHANG);
  ASSIGN_OR_RETURN(bool alive, is_alive(process));
  if (alive) return Observation{.running = true};
  Observation ended;
  Result<std::string> code = read_whole(exit_file_of(folder));
  if (code.ok()) {
    if (int number = 0; std::istringstream(*code) >> number) ended.exit_code = number;
  } else if (code.status().code() != StatusCode::kNotFound) {
    return code.status();
  }
  ended.last_words = last_words(log_file_of(folder));
  return ended;
}

Status LocalLauncher::stop(const std::string& handle, StopMode mode) {
  Process process = Process::parse(handle);
  ASSIGN_OR_RETURN(bool alive, is_alive(process));
  if (!alive) return ok_status();
  kill(process.pid, mode == StopMode::kKill ? SIGQUIT : SIGTERM);
  kill(process.pid, SIGCONT);  // a keeper that somebody stopped would never hear of it
  return ok_status();
}

Result<int> LocalLauncher::sweep(const std::string& mark, const std::string& folder) {
  int num_found = 0;
  // What is killed is gone a moment later, and may have made a file or a process until then.
  Deadline deadline = Deadline::after(kEndOfKilled);
  while (true) {
    ASSIGN_OR_RETURN(std::vector<int> found, processes_with(kMarkVariable, mark));
    if (found.empty()) break;
    if (deadline.expired()) return unavailable(format("process {} was killed and lives", found.front()));
    for (int pid : found) kill(pid, SIGKILL);
    num_found = std::max(num_found, static_cast<int>(found.size()));
    std::this_thread::sleep_for(kBetweenLooks);
  }
  remove_world_folder(folder);
  return num_found;
}

}  // namespace

std::unique_ptr<Launcher> make_local_launcher(LocalLauncherOptions options) {
  return std::make_unique<LocalLauncher>(std::move(options));
}

std::string exit_file_of(const std::string& folder) { return folder + "/exit"; }
std::string log_file_of(const std::string& folder) { return folder + "/log"; }

std::string last_words(const std::string& log_file) {
  constexpr std::string_view kMark = "llm-dist: ";
  std::ifstream file(log_file, std::ios::binary);
  file.seekg(0, std::ios::end);
  file.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg()) - kEndOfLog));
  std::string words;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kMark)) words = line.substr(kMark.size());
    if (!line.starts_with('{')) continue;
    nlohmann::json entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object() || entry.value("level", nlohmann::json()) != "error") continue;
    nlohmann::json message = entry.value("message", nlohmann::json());
    if (message.is_string()) words = message.get<std::string>();
  }
  return words.substr(0, kLongestWords);
}

Result<std::vector<int>> processes_with(const std::string& name, const std::string& value) {
  std::vector<int> found;
  std::error_code error;
  std::string wanted = name + "=" + value;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string file = entry->path().filename();
    int pid = 0;
    auto [end, failed] = std::from_chars(file.data(), file.data() + file.size(), pid);
    if (failed != std::errc() || end != file.data() + file.size() || pid == getpid()) continue;
    Result<std::string> environment = read_whole(entry->path() / "environ");
    // It has ended, or is another user's and so none of ours.
    StatusCode code = environment.status().code();
    if (code == StatusCode::kNotFound || code == StatusCode::kFailedPrecondition) continue;
    RETURN_IF_ERROR(environment.status());
    std::istringstream variables(*environment);
    for (std::string variable; std::getline(variables, variable, '\0');) {
      if (variable == wanted) {
        found.push_back(pid);
        break;
      }
    }
  }
  if (error) return unavailable(format("/proc: {}", error.message()));
  return found;
}

}  // namespace llm_dist::cluster
