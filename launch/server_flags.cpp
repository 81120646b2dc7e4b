#include "launch/server_flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "src/base/format.h"
#include "src/base/log.h"
#include "src/server/server_options.h"

namespace llm_dist::launch {
namespace {

Result<std::string> api_key_of(const ServerFlags& flags) {
  if (!flags.api_key_file.empty()) {
    ASSIGN_OR_RETURN(std::vector<std::string> keys, server::read_api_keys(flags.api_key_file));
    return keys.front();
  }
  if (!flags.api_key.empty()) {
    log_warning("--api-key shows in the process list: use --api-key-file or LLM_DIST_API_KEY");
    return flags.api_key;
  }
  const char* key = std::getenv("LLM_DIST_API_KEY");
  return std::string(key != nullptr ? key : "");
}

Status add_header(const std::string& line, http::Headers& headers) {
  size_t colon = line.find(':');
  if (colon == std::string::npos || colon == 0)
    return invalid_argument(format("--header {}: it is written 'Name: value'", line));
  size_t value = line.find_first_not_of(' ', colon + 1);
  headers.set(line.substr(0, colon), value == std::string::npos ? "" : line.substr(value));
  return ok_status();
}

}  // namespace

void add_server_flags(CLI::App& app, ServerFlags& flags) {
  auto* group = app.add_option_group("Server");
  auto* url = group->add_option("--base-url",
                                flags.base_url,
                                "The server, for example http://127.0.0.1:8000 (a /v1 at its end is fine)");
  auto* host = group->add_option("--host", flags.host, "The server's address, without --base-url");
  auto* port = group->add_option("--port", flags.port, "The server's port, without --base-url");
  auto* uds = group->add_option("--uds", flags.uds_path, "The server's Unix socket");
  host->capture_default_str();
  port->capture_default_str();
  url->excludes(host)->excludes(port)->excludes(uds);
  uds->excludes(host)->excludes(port);
  group->add_option(
      "--api-key-file", flags.api_key_file, "The key is this file's first line (or LLM_DIST_API_KEY)");
  group->add_option(
      "--api-key", flags.api_key, "A key; others on this machine can read it from the process list");
  group->add_option("--header", flags.headers, "'Name: value' of every request; may be given again")
      ->allow_extra_args(false);
  group->add_option("--ssl-ca-certs", flags.ca_file, "PEM file to trust instead of the system's certificates")
      ->check(CLI::ExistingFile);
}

Result<ServerAccess> open_access(const ServerFlags& flags) {
  ServerAccess access;
  access.client.tls_ca_file = flags.ca_file;
  bool ipv6 = flags.host.find(':') != std::string::npos && !flags.host.starts_with('[');
  access.base_url = format(ipv6 ? "http://[{}]:{}" : "http://{}:{}", flags.host, flags.port);
  if (!flags.uds_path.empty()) access.base_url = unix_socket_url(flags.uds_path);
  if (!flags.base_url.empty()) access.base_url = trimmed_base_url(flags.base_url);
  ASSIGN_OR_RETURN(std::string key, api_key_of(flags));
  if (!key.empty()) access.headers.set("Authorization", "Bearer " + key);
  for (const std::string& line : flags.headers) RETURN_IF_ERROR(add_header(line, access.headers));
  return access;
}

}  // namespace llm_dist::launch
