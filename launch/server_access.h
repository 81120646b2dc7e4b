// An OpenAI-compatible server as a client sees it: where it is, what each request carries, what its errors
// say.
#pragma once

#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/http/client.h"

namespace llm_dist::launch {

struct ServerAccess {
  std::string base_url;   // "http://host:port" or "http+unix://…", without a slash at the end
  http::Headers headers;  // of every request
  http::ClientOptions client;
};

// "http://127.0.0.1:8000/v1/" as people copy it from other clients: without the slash and the /v1.
std::string trimmed_base_url(std::string url);
// The URL of a server that listens on a Unix socket.
std::string unix_socket_url(const std::string& path);

// A GET, or a POST when there is a body.
http::ClientRequest request_to(const ServerAccess& server,
                               const std::string& path,
                               std::string json_body = "");

// Why a server refused. `code` may be empty.
struct ServerError {
  std::string message;
  std::string code;
};
// OpenAI's error object, or the body as it is.
ServerError read_server_error(const http::Response& response);
// The same as a Status: unavailable from 500 on, invalid_argument below.
Status status_of(const http::Response& response);

// A server that was not reached, or whose certificate is not trusted: the same with what to do about it.
struct AccessAdvice {
  std::string_view place;  // how one comes to be, and where it is looked for
  std::string_view trust;  // what makes its certificate trusted
};
Status with_advice(const Status& status, const AccessAdvice& advice);
// The same with the flags of chat and bench serve.
Status with_server_advice(const Status& status);

// The first of GET /v1/models.
Result<std::string> first_model(http::Client& client, const ServerAccess& server);

struct CompletionUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

// One event of a streamed completion or chat completion.
struct CompletionEvent {
  bool done = false;       // "[DONE]"
  bool has_token = false;  // stands for generated tokens, even when their text is empty
  std::string text;
  std::string finish_reason;  // empty until the choice ends
  bool has_usage = false;
  CompletionUsage usage;
  bool failed = false;  // the server gave up, or this is no event of such a stream
  ServerError error;
};
CompletionEvent read_completion_event(std::string_view data);

}  // namespace llm_dist::launch
