#include "launch/gpu_names.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "src/base/format.h"
#include "src/base/log.h"

namespace llm_dist::launch {
namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// Of the child.
[[noreturn]] void tell_count(const std::function<Result<int>()>& count, int to) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Result<int> found = count();
  if (!found.ok()) log_debug("no GPU: {}", found.status().message());
  const int number = found.ok() ? *found : 0;
  const bool told = write(to, &number, sizeof number) == sizeof number;
  _exit(told ? 0 : 1);
}

Result<int> hear_count(int from, Duration patience) {
  pollfd ready{.fd = from, .events = POLLIN, .revents = 0};
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
  if (poll(&ready, 1, static_cast<int>(milliseconds)) == 0)
    return unavailable("the GPUs' driver does not answer");
  int number = 0;
  if (read(from, &number, sizeof number) != sizeof number)
    return unavailable("the process that looks for GPUs has ended");
  return number;
}

}  // namespace

std::vector<std::string> gpu_names(int count, const char* visible) {
  std::vector<std::string> names;
  if (visible == nullptr) {
    for (int gpu = 0; gpu < count; ++gpu) names.push_back(std::to_string(gpu));
    return names;
  }
  std::istringstream entries(visible);
  for (std::string entry; std::ssize(names) < count && std::getline(entries, entry, ',');)
    names.push_back(trimmed(entry));
  return names;
}

Result<std::vector<std::string>> find_gpus(const std::function<Result<int>()>& count, Duration patience) {
  int ends[2];
  if (pipe(ends) != 0) return unavailable(format("pipe: {}", strerror(errno)));
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    tell_count(count, ends[1]);
  }
  const int error = errno;
  close(ends[1]);
  Result<int> found = child < 0 ? Result<int>(unavailable(format("fork: {}", strerror(error))))
                                : hear_count(ends[0], patience);
  close(ends[0]);
  if (child > 0) {
    kill(child, SIGKILL);
    // A driver that hangs may hold it for ever.
    waitpid(child, nullptr, found.ok() ? 0 : WNOHANG);
  }
  RETURN_IF_ERROR(found.status());
  return gpu_names(*found, std::getenv("CUDA_VISIBLE_DEVICES"));
}

}  // namespace llm_dist::launch
