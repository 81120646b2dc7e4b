// Replies of the coordinator's API: JSON bodies, errors as the OpenAI API words them.
#pragma once

#include <string>

#include "src/base/status.h"
#include "src/http/message.h"

namespace llm_dist::cluster {

struct ApiError {
  int status = 400;
  std::string message{};
  std::string param{};    // the field; empty: null
  std::string code{};     // for programs; empty: null
  int retry_after_s = 0;  // 0: no Retry-After header
};

// {"error":{"message","type","param","code"}}
http::Response error_reply(const ApiError& error);
// What a store's or a check's refusal means to a client.
http::Response error_reply(const Status& status);
// http::ErrorRenderer for what the HTTP layer refuses by itself.
http::Response render_http_error(int status, const std::string& message);

}  // namespace llm_dist::cluster
