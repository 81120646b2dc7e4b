#include "src/http/key_check.h"

#include "src/http/digest.h"

namespace llm_dist::http {

KeyCheck::KeyCheck(const std::vector<std::string>& keys) {
  keys_.reserve(keys.size());
  for (const std::string& key : keys) keys_.push_back({.digest = sha256_hex(key), .length = key.size()});
}

bool KeyCheck::allows(const Request& request) const {
  if (keys_.empty()) return true;
  const std::string* header = request.headers.find("Authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (header == nullptr || header->size() < kScheme.size()) return false;
  if (!equals_ignoring_case(std::string_view(*header).substr(0, kScheme.size()), kScheme)) return false;
  std::string sent = sha256_hex(std::string_view(*header).substr(kScheme.size()));
  bool allowed = false;
  for (const Key& key : keys_) allowed |= secure_equal(sent, key.digest);
  return allowed;
}

bool KeyCheck::occurs_in(std::string_view text) const {
  for (const Key& key : keys_) {
    for (size_t at = 0; at + key.length <= text.size(); ++at) {
      if (sha256_hex(text.substr(at, key.length)) == key.digest) return true;
    }
  }
  return false;
}

bool is_loopback(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace llm_dist::http
