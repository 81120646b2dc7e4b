#include "src/sched/request.h"

#include "src/base/check.h"

namespace llm_dist::sched {

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "none";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  CHECK(false, "finish reason {}", static_cast<int>(reason));
  return {};
}

}  // namespace llm_dist::sched
