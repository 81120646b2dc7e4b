// The line that ends a request in the log: who asked for which endpoint and how it went. Never what was asked
// or answered: no part of a body, a path or an error message.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "src/base/clock.h"
#include "src/http/message.h"
#include "src/server/api_error.h"
#include "src/server/auth.h"
#include "src/server/metrics.h"
#include "src/server/request_schema.h"

namespace llm_dist::server {

inline constexpr std::string_view kRequestIdHeader = "X-Request-Id";

struct RequestTag {
  std::string id;
  Endpoint endpoint = Endpoint::kChat;
  TimePoint arrival;
};

// The id that the client gives its request, when it can stand in a header and a log line (1 to 128 letters,
// digits and -_.:/+=@) and holds no API key; else empty.
std::string client_request_id(const http::Request& request, const KeyCheck& keys);

// At info. `figures`: "12 prompt tokens, 34 tokens, …".
void log_answer(const RequestTag& tag, std::string_view figures);
// At info for what the client did wrong, at warning for a failure. What a busy, loading or draining server
// turns away is there at debug only: an overload must not fill the disk.
void log_refusal(const RequestTag& tag, const ApiError& error);
// At info, or debug as above: what ended before an endpoint had it, for its path, method, size or key. `id`
// may be empty.
void log_turned_away(std::string_view id, int status);
// Out of memory, or a mistake of ours that one client found: not a reason to end everybody's streams. At
// error; the answer is a 500.
ApiError log_exception(std::string_view id, const std::exception& failure);
// log_refusal(), and counted. Before the client is answered: whoever has the answer finds it in /metrics.
void record_refusal(const RequestTag& tag, const ApiError& error, Metrics& metrics);

}  // namespace llm_dist::server
