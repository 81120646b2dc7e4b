// What an engine's refusal means to a client. The shape of errors is that of src/http/api_error.h.
#pragma once

#include "src/base/status.h"
#include "src/http/api_error.h"

namespace llm_dist::server {

using http::ApiError;
using http::error_json;
using http::error_response;
using http::render_http_error;

// What an engine's refusal, or its end, means to a client.
ApiError from_status(const Status& status);

}  // namespace llm_dist::server
