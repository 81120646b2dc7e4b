#include "cluster/api/api_reply.h"

#include <nlohmann/json.hpp>

namespace llm_dist::cluster {
namespace {

nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

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

http::Response error_reply(const ApiError& error) {
  nlohmann::ordered_json body;
  body["error"]["message"] = error.message;
  body["error"]["type"] = error.status >= 500 ? "server_error" : "invalid_request_error";
  body["error"]["param"] = text_or_null(error.param);
  body["error"]["code"] = text_or_null(error.code);
  // A message may quote bytes that the client sent.
  http::Response response{.status = error.status,
                          .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
  if (error.retry_after_s > 0) response.headers.add("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.headers.add("WWW-Authenticate", "Bearer");
  return response;
}
http::Response error_reply(const Status& status) { return error_reply(from_status(status)); }

http::Response render_http_error(int status, const std::string& message) {
  ApiError error{.status = status, .message = message};
  if (status == 404) error.code = "unknown_url";
  if (status == 503) error.retry_after_s = 1;
  return error_reply(error);
}

}  // namespace llm_dist::cluster
