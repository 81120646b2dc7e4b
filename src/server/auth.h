// Who may ask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/http/message.h"
#include "src/server/server_options.h"

namespace llm_dist::server {

// invalid_argument when other machines could reach the server and nothing asks for a key.
Status check_exposure(const ServerOptions& options);

class KeyCheck {
 public:
  explicit KeyCheck(std::vector<std::string> keys) : keys_(std::move(keys)) {}
  // No key configured, or the right one sent. The time it takes depends on no key's content.
  bool allows(const http::Request& request) const;
  // Whether a key stands in `text`, which is then not fit to be shown.
  bool occurs_in(std::string_view text) const;

 private:
  std::vector<std::string> keys_;
};

// What probes and load balancers read needs no key.
bool is_open_path(const std::string& path);

}  // namespace llm_dist::server
