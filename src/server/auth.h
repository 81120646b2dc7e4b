// Who may ask.
#pragma once

#include <string>

#include "src/base/status.h"
#include "src/http/key_check.h"
#include "src/server/server_options.h"

namespace llm_dist::server {

using http::KeyCheck;

// invalid_argument when other machines could reach the server and nothing asks for a key.
Status check_exposure(const ServerOptions& options);

// What probes and load balancers read needs no key.
bool is_open_path(const std::string& path);

}  // namespace llm_dist::server
