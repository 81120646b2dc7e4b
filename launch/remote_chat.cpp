#include "launch/remote_chat.h"

#include <nlohmann/json.hpp>

#include "src/http/sse.h"

namespace llm_dist::launch {
namespace {
constexpr auto kLookEvery = std::chrono::milliseconds(50);
}

std::string RemoteChat::request_body(const std::string& messages_json) const {
  nlohmann::json body = {{"model", options_.model},
                         {"messages", nlohmann::json::parse(messages_json)},
                         {"stream", true},
                         {"temperature", options_.temperature},
                         {"top_p", options_.top_p},
                         {"seed", options_.seed}};
  if (options_.top_k > 0) body["top_k"] = options_.top_k;
  if (options_.max_tokens) body["max_tokens"] = *options_.max_tokens;
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status RemoteChat::answer(const std::string& messages_json, const OnText& on_text, const Stopped& stopped) {
  bool done = false;
  Status failure;
  http::SseParser parser([&](const http::SseEvent& raw) {
    CompletionEvent event = read_completion_event(raw.data);
    if (event.failed) failure = unavailable(event.error.message);
    if (!event.text.empty()) on_text(event.text);
    done = event.done;
    return !event.failed;
  });
  Status outcome;
  client_.start(
      request_to(server_, "/v1/chat/completions", request_body(messages_json)),
      Deadline::after_seconds(options_.answer_timeout_seconds),
      [&](std::string_view piece) { return parser.feed(piece); },
      [&](const Result<http::Response>& response) {
        outcome = response.ok() ? status_of(*response) : with_server_advice(response.status());
      });
  bool given_up = false;
  while (!client_.run(Deadline::after(kLookEvery))) {
    if (given_up || !stopped()) continue;
    given_up = true;
    client_.cancel_all();
  }
  if (given_up) return ok_status();
  RETURN_IF_ERROR(failure);
  RETURN_IF_ERROR(outcome);
  return done ? ok_status() : unavailable("the server's answer was cut off");
}

}  // namespace llm_dist::launch
