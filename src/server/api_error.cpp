#include "src/server/api_error.h"

namespace llm_dist::server {

ApiError from_status(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return {.status = 400, .message = status.message()};
    case StatusCode::kResourceExhausted:
      return {.status = 503, .message = status.message(), .code = "queue_full", .retry_after_s = 1};
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return {.status = 503, .message = status.message(), .code = "unavailable", .retry_after_s = 5};
    default: return {.status = 500, .message = status.message(), .code = "engine_error"};
  }
}

}  // namespace llm_dist::server
