#include "src/server/request_log.h"

#include <algorithm>

#include "src/base/log_format.h"
#include "src/base/type_name.h"

namespace llm_dist::server {
namespace {

constexpr size_t kMaxIdBytes = 128;

bool is_id_character(char c) {
  bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return alphanumeric || std::string_view("-_.:/+=@").find(c) != std::string_view::npos;
}

double seconds_since(TimePoint begin) { return seconds_between(begin, Clock::now()); }

LogLevel level_of(int status) {
  if (status == 429 || status == 503) return LogLevel::kDebug;
  return status >= 500 ? LogLevel::kWarning : LogLevel::kInfo;
}

}  // namespace

std::string client_request_id(const http::Request& request, const KeyCheck& keys) {
  const std::string* given = request.headers.find(kRequestIdHeader);
  if (given == nullptr || given->empty() || given->size() > kMaxIdBytes) return {};
  if (!std::all_of(given->begin(), given->end(), is_id_character)) return {};
  return keys.occurs_in(*given) ? std::string() : *given;
}

void log_answer(const RequestTag& tag, std::string_view figures) {
  log_request(LogLevel::kInfo,
              tag.id,
              "POST {} 200: {}, {} s",
              path_of(tag.endpoint),
              figures,
              seconds_since(tag.arrival));
}

void log_refusal(const RequestTag& tag, const ApiError& error) {
  log_request(level_of(error.status),
              tag.id,
              "POST {} {} {} after {} s",
              path_of(tag.endpoint),
              error.status,
              error.code.empty() ? "refused" : error.code,
              seconds_since(tag.arrival));
}

void log_turned_away(std::string_view id, int status) {
  log_request(level_of(status), id, "{} a request that no endpoint has seen", status);
}

ApiError log_exception(std::string_view id, const std::exception& failure) {
  // Its message may quote the request.
  log_request(LogLevel::kError, id, "the request could not be handled: {}", type_name(failure));
  return {.status = 500, .message = "the request could not be handled", .code = "internal_error"};
}

void record_refusal(const RequestTag& tag, const ApiError& error, Metrics& metrics) {
  log_refusal(tag, error);
  metrics.count_refused(error.status);
}

}  // namespace llm_dist::server
