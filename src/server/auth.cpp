#include "src/server/auth.h"

#include <cstdlib>

#include "src/base/format.h"

namespace llm_dist::server {

Status check_exposure(const ServerOptions& options) {
  if (!options.uds_path.empty() || http::is_loopback(options.host)) return ok_status();
  if (!options.api_keys.empty() || options.allow_keyless_remote) return ok_status();
  return invalid_argument(
      format("--host {} lets other machines in, and no API key is set: give --api-key-file FILE or the "
             "environment variable LLM_DIST_API_KEY, or listen on 127.0.0.1",
             options.host));
}

bool is_open_path(const std::string& path) {
  return path == "/livez" || path == "/readyz" || path == "/health" || path == "/version";
}

Result<std::vector<std::string>> read_api_keys(const std::string& path) {
  ASSIGN_OR_RETURN(std::vector<http::KeyLine> lines, http::read_key_lines(path));
  std::vector<std::string> keys;
  for (http::KeyLine& line : lines) {
    if (!http::can_be_sent(line.text)) {
      return invalid_argument(
          format("{} line {}: a key is printable ASCII without blanks, one a line", path, line.number));
    }
    keys.push_back(std::move(line.text));
  }
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
