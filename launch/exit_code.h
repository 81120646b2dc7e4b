// Exit codes as a shell gives them.
#pragma once

#include <sys/wait.h>

namespace llm_dist::launch {

constexpr int kSignalExitBase = 128;

// Of a status that waitpid(2) returned: the exit code, or 128 + the signal that ended the process.
inline int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalExitBase + WTERMSIG(status);
}

}  // namespace llm_dist::launch
