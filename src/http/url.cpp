#include "src/http/url.h"

#include <charconv>
#include <string_view>

#include "src/base/format.h"
#include "src/http/message.h"

namespace llm_dist::http {
namespace {

Status bad_url(const std::string& text, std::string_view why) {
  return invalid_argument(format("cannot use the URL {}: {}", text, why));
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool parse_port(std::string_view text, uint16_t& port) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port != 0;
}

// "host", "host:port" or "[v6]:port".
bool split_authority(std::string_view authority, Url& url) {
  size_t host_end = authority.find(':');
  if (authority.starts_with('[')) {
    size_t close = authority.find(']');
    if (close == std::string_view::npos) return false;
    url.host = authority.substr(1, close - 1);
    host_end = close + 1 < authority.size() ? close + 1 : std::string_view::npos;
    if (host_end != std::string_view::npos && authority[host_end] != ':') return false;
  } else {
    url.host = authority.substr(0, host_end);
  }
  url.port = url.tls ? 443 : 80;
  if (host_end != std::string_view::npos && !parse_port(authority.substr(host_end + 1), url.port))
    return false;
  return !url.host.empty();
}

}  // namespace

Result<Url> parse_url(const std::string& text) {
  Url url;
  std::string_view rest = text;
  bool local = false;
  if (take_prefix(rest, "http+unix://") || take_prefix(rest, "https+unix://")) {
    local = true;
    url.tls = text.starts_with("https");
  } else if (take_prefix(rest, "https://")) {
    url.tls = true;
  } else if (!take_prefix(rest, "http://")) {
    return bad_url(text, "it must start with http://, https:// or http+unix://");
  }
  size_t path = rest.find_first_of("/?");
  std::string_view authority = rest.substr(0, path);
  if (path != std::string_view::npos) url.target = rest.substr(path);
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  if (url.target.find(' ') != std::string::npos) return bad_url(text, "a space must be written %20");
  if (local) {
    url.uds_path = percent_decode(authority);
    url.host = url.authority = "localhost";
    if (url.uds_path.empty()) return bad_url(text, "it names no socket");
    return url;
  }
  url.authority = authority;
  if (!split_authority(authority, url)) return bad_url(text, "host or port is missing or malformed");
  return url;
}

}  // namespace llm_dist::http
