#include "cluster/api/access.h"

#include <algorithm>
#include <cstdlib>

#include "cluster/api/dashboard.h"
#include "src/base/format.h"
#include "src/base/nearest.h"
#include "src/http/digest.h"
#include "src/http/key_check.h"

namespace llm_dist::cluster {
namespace {

constexpr std::string_view kScopeNames[] = {"metrics", "read", "write"};
constexpr Scope kScopes[] = {Scope::kMetrics, Scope::kRead, Scope::kWrite};
constexpr unsigned kEverything = 7;
constexpr std::string_view kDigestPrefix = "sha256:";
constexpr size_t kDigestDigits = 64;

constexpr unsigned bit(Scope scope) { return static_cast<unsigned>(scope); }

std::string_view name_of(Scope scope) {
  return kScopeNames[std::find(std::begin(kScopes), std::end(kScopes), scope) - std::begin(kScopes)];
}

Result<unsigned> parse_scopes(std::string_view text) {
  unsigned scopes = 0;
  while (true) {
    size_t comma = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, comma);
    const auto* found = std::find(std::begin(kScopeNames), std::end(kScopeNames), name);
    if (found == std::end(kScopeNames)) {
      return invalid_argument(
          format("'{}' is no scope: did you mean '{}'?", name, nearest_word(name, kScopeNames)));
    }
    scopes |= bit(kScopes[found - std::begin(kScopeNames)]);
    if (comma == text.size()) return scopes;
    text.remove_prefix(comma + 1);
  }
}

Result<std::string> parse_digest(std::string_view key) {
  if (!key.starts_with(kDigestPrefix)) return http::sha256_hex(key);
  std::string digest(key.substr(kDigestPrefix.size()));
  bool right =
      digest.size() == kDigestDigits && digest.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (right) return digest;
  return invalid_argument("sha256: must be followed by 64 lower-case hexadecimal digits");
}

}  // namespace

Result<AccessKey> parse_access_key(std::string_view line) {
  size_t blank = std::min(line.find_first_of(" \t"), line.size());
  std::string_view key = line.substr(0, blank);
  std::string_view scopes = line.substr(std::min(line.find_first_not_of(" \t", blank), line.size()));
  if (key.empty() || !http::can_be_sent(key)) {
    return invalid_argument("a key is printable ASCII without blanks; its scopes may follow");
  }
  AccessKey parsed{.digest = "", .scopes = kEverything};
  ASSIGN_OR_RETURN(parsed.digest, parse_digest(key));
  if (!scopes.empty()) {
    ASSIGN_OR_RETURN(parsed.scopes, parse_scopes(scopes));
  }
  return parsed;
}

Result<std::vector<AccessKey>> accepted_access_keys(const std::string& path) {
  std::vector<AccessKey> keys;
  if (!path.empty()) {
    ASSIGN_OR_RETURN(std::vector<http::KeyLine> lines, http::read_key_lines(path));
    for (const http::KeyLine& line : lines) {
      Result<AccessKey> key = parse_access_key(line.text);
      if (!key.ok()) return key.status().with_context(format("{} line {}", path, line.number));
      keys.push_back(std::move(key).value());
    }
  }
  if (const char* key = std::getenv("LLM_DIST_API_KEY"); key != nullptr && *key != '\0') {
    keys.push_back({.digest = http::sha256_hex(key), .scopes = kEverything});
  }
  return keys;
}

std::optional<Scope> needed_scope(const http::Request& request) {
  // Probes need no key, and a replica proves itself with its attempt's secret.
  constexpr std::string_view kOpen[] = {"/livez", "/readyz", "/version", "/v1/replicas"};
  if (std::find(std::begin(kOpen), std::end(kOpen), request.path) != std::end(kOpen)) return std::nullopt;
  if (is_dashboard_path(request.path)) return std::nullopt;
  bool reads = request.method == "GET" || request.method == "HEAD" || request.method == "OPTIONS";
  if (!reads) return Scope::kWrite;
  return request.path == "/metrics" ? Scope::kMetrics : Scope::kRead;
}

std::optional<http::ApiError> Access::refusal(const http::Request& request) const {
  std::optional<Scope> needed = needed_scope(request);
  if (!needed) return std::nullopt;
  std::optional<unsigned> scopes = scopes_of(request);
  if (!scopes) {
    return http::ApiError{.status = 401,
                          .message = "an API key is needed: send 'Authorization: Bearer KEY'",
                          .code = "invalid_api_key"};
  }
  if ((*scopes & bit(*needed)) != 0) return std::nullopt;
  return http::ApiError{.status = 403,
                        .message = format("this API key lacks the scope '{}'", name_of(*needed)),
                        .code = "insufficient_scope"};
}

bool Access::has(const http::Request& request, Scope scope) const {
  return (scopes_of(request).value_or(0) & bit(scope)) != 0;
}

std::optional<unsigned> Access::scopes_of(const http::Request& request) const {
  if (keys_.empty()) return kEverything;
  std::optional<std::string_view> sent = http::bearer_key(request);
  if (!sent) return std::nullopt;
  std::string digest = http::sha256_hex(*sent);
  unsigned scopes = 0;
  for (const AccessKey& key : keys_) scopes |= http::secure_equal(digest, key.digest) ? key.scopes : 0;
  return scopes == 0 ? std::nullopt : std::optional(scopes);
}

}  // namespace llm_dist::cluster
