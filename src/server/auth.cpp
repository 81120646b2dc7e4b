#include "src/server/auth.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "src/base/format.h"

namespace llm_dist::server {
namespace {

bool is_loopback(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

bool can_be_sent(const std::string& key) {
  return std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

Status check_exposure(const ServerOptions& options) {
  if (!options.uds_path.empty() || is_loopback(options.host)) return ok_status();
  if (!options.api_keys.empty() || options.allow_keyless_remote) return ok_status();
  return invalid_argument(
      format("--host {} lets other machines in, and no API key is set: give --api-key-file FILE or the "
             "environment variable LLM_DIST_API_KEY, or listen on 127.0.0.1",
             options.host));
}

bool KeyCheck::allows(const http::Request& request) const {
  if (keys_.empty()) return true;
  const std::string* header = request.headers.find("Authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (header == nullptr || header->size() < kScheme.size()) return false;
  if (!http::equals_ignoring_case(std::string_view(*header).substr(0, kScheme.size()), kScheme)) return false;
  std::string_view sent = std::string_view(*header).substr(kScheme.size());
  bool allowed = false;
  for (const std::string& key : keys_) allowed |= http::secure_equal(sent, key);
  return allowed;
}

bool KeyCheck::occurs_in(std::string_view text) const {
  return std::any_of(keys_.begin(), keys_.end(), [&](const std::string& key) {
    return text.find(key) != std::string_view::npos;
  });
}

bool is_open_path(const std::string& path) {
  return path == "/livez" || path == "/readyz" || path == "/health" || path == "/version";
}

Result<std::vector<std::string>> read_api_keys(const std::string& path) {
  std::ifstream file(path);
  if (!file) return not_found(format("cannot read the API key file {}", path));
  std::vector<std::string> keys;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    std::string key = line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
    if (!can_be_sent(key)) {
      return invalid_argument(
          format("{} line {}: a key is printable ASCII without blanks, one a line", path, line_number));
    }
    keys.push_back(std::move(key));
  }
  if (keys.empty()) return invalid_argument(format("{} holds no key", path));
  return keys;
}

Result<std::vector<std::string>> accepted_keys(const std::string& path) {
  std::vector<std::string> keys;
  if (!path.empty()) {
    ASSIGN_OR_RETURN(keys, read_api_keys(path));
  }
  if (const char* key = std::getenv("LLM_DIST_API_KEY"); key != nullptr && *key != '\0')
    keys.emplace_back(key);
  return keys;
}

}  // namespace llm_dist::server
