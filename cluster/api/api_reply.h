// Replies of the coordinator's API that refuse. The shape of errors is that of src/http/api_error.h.
#pragma once

#include "src/base/status.h"
#include "src/http/api_error.h"

namespace llm_dist::cluster {

using http::ApiError;
using http::render_http_error;

inline http::Response error_reply(const ApiError& error) { return http::error_response(error); }
// What a store's or a check's refusal means to a client.
http::Response error_reply(const Status& status);

}  // namespace llm_dist::cluster
