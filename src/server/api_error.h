// ApiError: an error as the OpenAI API words it.
#pragma once

#include <string>

#include "src/base/status.h"
#include "src/http/message.h"

namespace llm_dist::server {

struct ApiError {
  int status = 400;       // of HTTP
  std::string message{};  // for the person who wrote the request
  std::string param{};    // the field, as in "messages[0].role"; empty: null
  std::string code{};     // for programs; empty: null
  int retry_after_s = 0;  // 0: no Retry-After header
};

// {"error":{"message","type","param","code"}}
std::string error_json(const ApiError& error);
http::Response error_response(const ApiError& error);
// What an engine's refusal, or its end, means to a client.
ApiError from_status(const Status& status);

// http::ErrorRenderer for what the HTTP layer refuses by itself.
http::Response render_http_error(int status, const std::string& message);

}  // namespace llm_dist::server
