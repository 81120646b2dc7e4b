// Web pages of others, which make their reader's browser ask a server that only it can reach.
#pragma once

#include <optional>
#include <string>

#include "src/http/api_error.h"
#include "src/http/message.h"

namespace llm_dist::http {

// For a server that asks for no key and listens at `host` (empty: at a Unix socket). Nothing: no such page is
// behind the request. 403: it comes from a page of another origin than the server's, or names a host that
// only somebody's DNS leads to this loopback address.
std::optional<ApiError> foreign_page(const Request& head, const std::string& host);

}  // namespace llm_dist::http
