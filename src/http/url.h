// The URLs the client understands. Internal to this folder.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/status.h"

namespace llm_dist::http {

struct Url {
  bool tls = false;
  std::string uds_path;  // set for http+unix, then host and port are not
  std::string host;      // without brackets
  uint16_t port = 0;
  std::string authority;  // for the Host header
  std::string target;     // path and query, at least "/"

  // The same for every URL that one connection can serve.
  std::string origin() const { return (tls ? "s:" : "p:") + uds_path + '|' + authority; }
};

// invalid_argument says what is wrong with it.
Result<Url> parse_url(const std::string& text);

}  // namespace llm_dist::http
