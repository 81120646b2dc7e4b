#include "src/http/api_error.h"

#include <nlohmann/json.hpp>

namespace llm_dist::http {
namespace {

nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

}  // namespace

std::string error_json(const ApiError& error) {
  nlohmann::ordered_json body;
  body["error"]["message"] = error.message;
  body["error"]["type"] = error.status >= 500 ? "server_error" : "invalid_request_error";
  body["error"]["param"] = text_or_null(error.param);
  body["error"]["code"] = text_or_null(error.code);
  // A message may quote bytes that the client sent.
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Response error_response(const ApiError& error) {
  Response response{.status = error.status, .body = error_json(error)};
  if (error.retry_after_s > 0) response.headers.add("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.headers.add("WWW-Authenticate", "Bearer");
  return response;
}

Response render_http_error(int status, const std::string& message) {
  ApiError error{.status = status, .message = message};
  if (status == 404) error.code = "unknown_url";
  if (status == 503) error.retry_after_s = 1;
  return error_response(error);
}

}  // namespace llm_dist::http
