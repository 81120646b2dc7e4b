// ApiError: an error as the OpenAI API words it.
#pragma once

#include <string>

#include "src/http/message.h"

namespace llm_dist::http {

struct ApiError {
  int status = 400;       // of HTTP
  std::string message{};  // for the person who wrote the request
  std::string param{};    // the field, as in "messages[0].role"; empty: null
  std::string code{};     // for programs; empty: null
  int retry_after_s = 0;  // 0: no Retry-After header
};

// {"error":{"message","type","param","code"}}
std::string error_json(const ApiError& error);
Response error_response(const ApiError& error);

// An ErrorRenderer: what the HTTP layer refuses by itself, in the same words.
Response render_http_error(int status, const std::string& message);

}  // namespace llm_dist::http
