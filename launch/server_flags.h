// The flags by which client commands name a server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/server_access.h"

namespace CLI {
class App;
}

namespace llm_dist::launch {

struct ServerFlags {
  std::string base_url;  // or of the three below
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string uds_path;
  std::string api_key_file;
  std::string api_key;
  std::vector<std::string> headers;  // "Name: value"
  std::string ca_file;
};

void add_server_flags(CLI::App& app, ServerFlags& flags);

// invalid_argument, or not_found of the key file.
Result<ServerAccess> open_access(const ServerFlags& flags);

}  // namespace llm_dist::launch
