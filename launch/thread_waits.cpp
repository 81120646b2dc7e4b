#include "launch/thread_waits.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace llm_dist::launch {
namespace {

// Looks, some tens of microseconds: about as long as a thread of an idle host lets another wait.
constexpr const char* kLooks = "1000";

}  // namespace

void bound_thread_waits(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || setenv("GOMP_SPINCOUNT", kLooks, 0) != 0) return;
  execv(program.c_str(), argv);
}

}  // namespace llm_dist::launch
