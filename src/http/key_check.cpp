#include "src/http/key_check.h"

#include <algorithm>
#include <sstream>

#include "src/base/format.h"
#include "src/base/small_file.h"
#include "src/http/digest.h"

namespace llm_dist::http {

KeyCheck::KeyCheck(const std::vector<std::string>& keys) {
  keys_.reserve(keys.size());
  for (const std::string& key : keys) keys_.push_back({.digest = sha256_hex(key), .length = key.size()});
}

bool KeyCheck::allows(const Request& request) const {
  if (keys_.empty()) return true;
  std::optional<std::string_view> key_sent = bearer_key(request);
  if (!key_sent) return false;
  std::string sent = sha256_hex(*key_sent);
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

std::optional<std::string_view> bearer_key(const Request& request) {
  const std::string* header = request.headers.find("Authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (header == nullptr || header->size() < kScheme.size()) return std::nullopt;
  std::string_view text = *header;
  if (!equals_ignoring_case(text.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  return text.substr(kScheme.size());
}

Result<std::vector<KeyLine>> read_key_lines(const std::string& path) {
  Result<std::string> read = read_small_file(path);
  if (!read.ok()) return read.status().with_context("the API key file");
  std::istringstream file(*read);
  std::vector<KeyLine> lines;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    lines.push_back({number, line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1)});
  }
  if (lines.empty()) return invalid_argument(format("{} holds no key", path));
  return lines;
}

bool can_be_sent(std::string_view key) {
  return std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

bool is_loopback(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (equals_ignoring_case(host, "localhost") || host == "::1") return true;
  // "127.example.org" is a name like any other.
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
}

}  // namespace llm_dist::http
