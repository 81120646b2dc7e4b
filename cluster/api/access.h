// Who may ask the coordinator what: keys with scopes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/http/api_error.h"
#include "src/http/message.h"

namespace llm_dist::cluster {

// What a key opens. A set of them is the sum of its bits.
enum class Scope : unsigned {
  kMetrics = 1,  // GET /metrics
  kRead = 2,     // every other GET
  kWrite = 4,    // what changes something, and the keys of replicas
};

struct AccessKey {
  std::string digest;  // SHA-256 of the key, hexadecimal
  unsigned scopes = 0;
};

// "KEY" opens everything; "KEY metrics,read" what it names. "sha256:DIGEST" stands for the key of that
// digest. invalid_argument says what is wrong.
Result<AccessKey> parse_access_key(std::string_view line);
// Those of the file, where one is named, one a line, and the one in LLM_DIST_API_KEY, which opens everything.
Result<std::vector<AccessKey>> accepted_access_keys(const std::string& path);

// Nothing: everybody may ask.
std::optional<Scope> needed_scope(const http::Request& request);

class Access {
 public:
  // None: whoever can reach the coordinator may do everything.
  explicit Access(std::vector<AccessKey> keys) : keys_(std::move(keys)) {}
  // Nothing: it may be answered. 401: no key that is known; 403: a key without the scope.
  std::optional<http::ApiError> refusal(const http::Request& request) const;
  bool has(const http::Request& request, Scope scope) const;

 private:
  // Of the key that was sent; nothing: it is none of these. The time it takes depends on no key's content.
  std::optional<unsigned> scopes_of(const http::Request& request) const;

  std::vector<AccessKey> keys_;
};

}  // namespace llm_dist::cluster
