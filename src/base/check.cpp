#include "src/base/check.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace llm_dist {
namespace {
std::string& identity_storage() {
  static std::string identity = "pid " + std::to_string(getpid());
  return identity;
}
}  // namespace

void set_process_identity(std::string identity) { identity_storage() = std::move(identity); }
const std::string& process_identity() { return identity_storage(); }

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr,
               "[%s] CHECK failed at %s:%d: %s%s%s\n",
               process_identity().c_str(),
               file,
               line,
               condition,
               message.empty() ? "" : ": ",
               message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace llm_dist
