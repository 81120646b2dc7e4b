#include "cluster/api/api_reply.h"

namespace llm_dist::cluster {
namespace {

ApiError from_status(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return {.status = 400, .message = status.message()};
    case StatusCode::kNotFound: return {.status = 404, .message = status.message(), .code = "not_found"};
    case StatusCode::kFailedPrecondition:
      return {.status = 409, .message = status.message(), .code = "conflict"};
    case StatusCode::kResourceExhausted:
      return {.status = 503, .message = status.message(), .code = "overloaded", .retry_after_s = 1};
    case StatusCode::kAborted:
      return {.status = 503, .message = status.message(), .code = "not_the_leader", .retry_after_s = 1};
    case StatusCode::kUnavailable:
      return {.status = 503, .message = status.message(), .code = "unavailable", .retry_after_s = 1};
    default: return {.status = 500, .message = status.message(), .code = "internal_error"};
  }
}

}  // namespace

http::Response error_reply(const Status& status) { return error_reply(from_status(status)); }

}  // namespace llm_dist::cluster
