#include "src/http/foreign_page.h"

#include "src/base/format.h"
#include "src/http/key_check.h"

namespace llm_dist::http {
namespace {

// "[::1]:80" → "[::1]", "localhost:80" → "localhost"
std::string without_port(const std::string& authority) {
  const size_t colon = authority.find(':', authority.starts_with('[') ? authority.find(']') : 0);
  return authority.substr(0, colon);
}

// A proxy may speak TLS to the browser and none to the server, so either scheme will do.
bool is_own_origin(std::string_view origin, const std::string& authority) {
  for (std::string_view scheme : {"http://", "https://"}) {
    if (origin.starts_with(scheme)) return equals_ignoring_case(origin.substr(scheme.size()), authority);
  }
  return false;
}

ApiError refusal(std::string_view what) {
  return {.status = 403,
          .message = format("{}, and this server has no API key to know its users by: give it one with "
                            "--api-key-file FILE or LLM_DIST_API_KEY, and send that",
                            what),
          .code = "foreign_page"};
}

}  // namespace

std::optional<ApiError> foreign_page(const Request& head, const std::string& host) {
  const std::string* authority = head.headers.find("Host");
  const std::string* origin = head.headers.find("Origin");
  if (origin != nullptr && (authority == nullptr || !is_own_origin(*origin, *authority))) {
    return refusal("a web page of another origin asks");
  }
  // A server that is reached from elsewhere may have any name there.
  if (authority == nullptr || !is_loopback(host)) return std::nullopt;
  const std::string name = without_port(*authority);
  if (is_loopback(name) || equals_ignoring_case(name, host)) return std::nullopt;
  return refusal("the header Host names neither this machine's loopback address nor --host");
}

}  // namespace llm_dist::http
