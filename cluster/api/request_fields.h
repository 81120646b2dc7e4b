// Pieces of requests that several APIs read alike.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/status.h"
#include "src/http/message.h"

namespace llm_dist::cluster {

// invalid_argument names the field and its range.
Result<int64_t> parse_number(const std::string& text, const char* name, int64_t low, int64_t high);

// The Idempotency-Key header; empty: none.
Result<std::string> idempotency_key(const http::Request& request);

// The OpenAI-Project header, or "default". invalid_argument: longer than 64 bytes.
Result<std::string> project_of(const http::Request& request);

}  // namespace llm_dist::cluster
