// CHECK: a bug in this program. It prints file, line, the condition, the values and the process's identity,
// then aborts. Failures of the world (a peer, a file, a request) are a Status instead.
#pragma once

#include <string>
#include <string_view>

#include "src/base/format.h"

namespace llm_dist {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

// Who this process is, for log lines and CHECK messages: "rank 3 host a pid 17". The one permitted global.
void set_process_identity(std::string identity);
const std::string& process_identity();

namespace internal {
inline std::string check_message() { return {}; }
template <typename... Args>
std::string check_message(std::string_view pattern, const Args&... args) {
  return format(pattern, args...);
}
}  // namespace internal

}  // namespace llm_dist

#define CHECK(condition, ...)                                                                \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::llm_dist::check_failed(                                                              \
          __FILE__, __LINE__, #condition, ::llm_dist::internal::check_message(__VA_ARGS__)); \
  } while (false)

#define CHECK_EQ(a, b) CHECK((a) == (b), "{} vs {}", (a), (b))
#define CHECK_NE(a, b) CHECK((a) != (b), "{} vs {}", (a), (b))
#define CHECK_LE(a, b) CHECK((a) <= (b), "{} vs {}", (a), (b))
#define CHECK_LT(a, b) CHECK((a) < (b), "{} vs {}", (a), (b))
#define CHECK_GE(a, b) CHECK((a) >= (b), "{} vs {}", (a), (b))
#define CHECK_GT(a, b) CHECK((a) > (b), "{} vs {}", (a), (b))
