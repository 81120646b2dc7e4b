// What an HTTP exchange carries: headers, requests, responses. Plain data, no socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/clock.h"
#include "src/http/body.h"

namespace llm_dist::http {

bool equals_ignoring_case(std::string_view a, std::string_view b);

// Header fields in the order they came; names compare without case.
class Headers {
 public:
  using Field = std::pair<std::string, std::string>;

  Headers() = default;
  Headers(std::initializer_list<Field> fields) : fields_(fields) {}

  void add(std::string name, std::string value) { fields_.emplace_back(std::move(name), std::move(value)); }
  // Replaces every field of that name.
  void set(std::string name, std::string value);
  // The first value of that name, or null.
  const std::string* find(std::string_view name) const;
  size_t count(std::string_view name) const;
  // Does a comma-separated list field hold that token ("Connection: keep-alive, upgrade")?
  bool has_token(std::string_view name, std::string_view token) const;

  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  size_t size() const { return fields_.size(); }

 private:
  std::vector<Field> fields_;
};

struct Request {
  std::string method;  // as sent: "GET"
  std::string path;    // before '?', not percent-decoded, always starting with '/' (or "*" of OPTIONS *)
  std::string query;   // after '?', not decoded
  Headers headers;
  std::string body;                // chunked bodies arrive joined; empty where a sink took it
  std::shared_ptr<BodySink> sink;  // see Admission
  std::string peer;                // "127.0.0.1:51234", "[::1]:80" or "unix"
  // Filled by Router from "{name}" segments, percent-decoded.
  std::vector<std::pair<std::string, std::string>> path_params;

  // Empty when the route has no such segment.
  std::string_view path_param(std::string_view name) const;
  // The first percent-decoded value of a query field, empty when absent.
  std::string query_param(std::string_view name) const;
  // Nothing: it is not known before the body has come.
  std::optional<uint64_t> content_length() const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers = {};
  std::string body = {};
  std::shared_ptr<BodySource> source = {};  // where it is set, the body is what this one reads
};

// What a server does with a body whose header has come.
struct Admission {
  std::optional<Response> refusal{};       // the answer; the body is not taken
  uint64_t max_body_bytes = UINT64_MAX;    // beyond, or beyond what the server takes at all: 413
  std::optional<Duration> body_timeout{};  // of the whole body; nothing: the server's
  std::shared_ptr<BodySink> sink{};        // takes the body; without one it is held in Request::body
};

// Makes the body of an error that the server itself reports (404, 413, ...). This folder knows no JSON.
using ErrorRenderer = std::function<Response(int status, const std::string& message)>;
// The renderer used when none is given: text/plain.
Response plain_error(int status, const std::string& message);

// "Not Found"; "Unknown" for a code without a name.
std::string_view reason_phrase(int status);

// "%2F" and, in a query, "+". A broken escape stays as it is.
std::string percent_decode(std::string_view text, bool plus_is_space = false);

// Compares without leaking, through time, how much of the secret matched. The lengths are not secret.
bool secure_equal(std::string_view a, std::string_view b);

}  // namespace llm_dist::http
