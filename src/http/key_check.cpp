#include "src/http/key_check.h"

#include "src/http/digest.h"

namespace llm_dist::http {

KeyCheck::KeyCheck(const std::vector<std::string>& keys) {
  digests_.reserve(keys.size());
  for (const std::string& key : keys) digests_.push_back(sha256_hex(key));
}

bool KeyCheck::allows(const Request& request) const {
  if (digests_.empty()) return true;
  const std::string* header = request.headers.find("Authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (header == nullptr || header->size() < kScheme.size()) return false;
  if (!equals_ignoring_case(std::string_view(*header).substr(0, kScheme.size()), kScheme)) return false;
  std::string sent = sha256_hex(std::string_view(*header).substr(kScheme.size()));
  bool allowed = false;
  for (const std::string& digest : digests_) allowed |= secure_equal(sent, digest);
  return allowed;
}

bool is_loopback(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace llm_dist::http
