#include "launch/server_access.h"

#include <nlohmann/json.hpp>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

using nlohmann::json;

constexpr double kModelsSeconds = 30;

std::string text_of(const json& object, const char* field) {
  auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Some servers send the field with every event, null while all is well.
bool has_error(const json& reply) {
  auto found = reply.find("error");
  return found != reply.end() && !found->is_null();
}

ServerError error_of(const json& reply) {
  const json& error = reply["error"];
  if (error.is_string()) return {.message = error.get<std::string>()};
  if (!error.is_object()) return {.message = reply.dump()};
  return {.message = text_of(error, "message"), .code = text_of(error, "code")};
}

int64_t count_of(const json& usage, const char* field) {
  auto found = usage.find(field);
  return found != usage.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// A chat's first event names the role and stands for no token; the one that ends a choice may have none.
void read_choice(const json& choice, CompletionEvent& event) {
  event.finish_reason = text_of(choice, "finish_reason");
  auto delta = choice.find("delta");
  bool chat = delta != choice.end() && delta->is_object();
  event.text = text_of(chat ? *delta : choice, chat ? "content" : "text");
  bool announces = chat && delta->contains("role");
  event.has_token = !event.text.empty() || (!announces && event.finish_reason.empty());
}

}  // namespace

std::string trimmed_base_url(std::string url) {
  auto trim_slashes = [&] {
    while (url.ends_with('/')) url.pop_back();
  };
  trim_slashes();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  trim_slashes();
  return url;
}

std::string unix_socket_url(const std::string& path) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string url = "http+unix://";
  for (char c : path) {
    auto byte = static_cast<unsigned char>(c);
    bool plain = (byte < 0x80 && std::isalnum(byte) != 0) || c == '.' || c == '-' || c == '_';
    if (plain) {
      url += c;
    } else {
      url += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return url;
}

http::ClientRequest request_to(const ServerAccess& server, const std::string& path, std::string json_body) {
  http::ClientRequest request{.method = json_body.empty() ? "GET" : "POST",
                              .url = server.base_url + path,
                              .headers = server.headers,
                              .body = std::move(json_body)};
  if (!request.body.empty()) request.headers.set("Content-Type", "application/json");
  return request;
}

ServerError read_server_error(const http::Response& response) {
  json reply = json::parse(response.body, nullptr, false);
  if (reply.is_object() && has_error(reply)) return error_of(reply);
  std::string phrase = format("{} {}", response.status, http::reason_phrase(response.status));
  return {.message = response.body.empty() ? phrase : response.body};
}

Status status_of(const http::Response& response) {
  if (response.status < 400) return ok_status();
  std::string message = read_server_error(response).message;
  return response.status >= 500 ? unavailable(message) : invalid_argument(message);
}

Status with_advice(const Status& status, const AccessAdvice& advice) {
  auto adding = [&](std::string_view what) {
    return Status(status.code(), format("{}; {}", status.message(), what));
  };
  if (status.code() == StatusCode::kUnavailable) return adding(advice.place);
  if (status.code() == StatusCode::kFailedPrecondition) return adding(advice.trust);
  return status;
}

Status with_server_advice(const Status& status) {
  return with_advice(status,
                     {.place = "llm-dist serve MODEL starts a server, and --base-url, --host and --port, or "
                               "--uds say where one is",
                      .trust = "--ssl-ca-certs FILE names the certificates to trust"});
}

Result<std::string> first_model(http::Client& client, const ServerAccess& server) {
  auto answer = client.request(request_to(server, "/v1/models"), Deadline::after_seconds(kModelsSeconds));
  RETURN_IF_ERROR(with_server_advice(answer.status()));
  const http::Response& response = *answer;
  RETURN_IF_ERROR(status_of(response).with_context("GET /v1/models"));
  json reply = json::parse(response.body, nullptr, false);
  if (reply.is_object() && reply["data"].is_array() && !reply["data"].empty()) {
    const json& model = reply["data"].front();
    if (model.is_object() && !text_of(model, "id").empty()) return text_of(model, "id");
  }
  return failed_precondition(format("{}/v1/models names no model: give --model", server.base_url));
}

CompletionEvent read_completion_event(std::string_view data) {
  CompletionEvent event;
  event.done = data == "[DONE]";
  if (event.done) return event;
  json reply = json::parse(data, nullptr, false);
  event.failed = !reply.is_object() || has_error(reply);
  if (!reply.is_object()) {
    event.error.message = format("the stream holds what is no JSON object: {}", data.substr(0, 200));
  } else if (event.failed) {
    event.error = error_of(reply);
  }
  if (event.failed) return event;
  auto choices = reply.find("choices");
  if (choices != reply.end() && choices->is_array() && !choices->empty() && choices->front().is_object())
    read_choice(choices->front(), event);
  auto usage = reply.find("usage");
  event.has_usage = usage != reply.end() && usage->is_object();
  if (event.has_usage)
    event.usage = {count_of(*usage, "prompt_tokens"), count_of(*usage, "completion_tokens")};
  return event;
}

}  // namespace llm_dist::launch
