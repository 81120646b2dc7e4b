// Request bodies to specs. Strict: an unknown field, a wrong type, a value out of range or a feature that is
// not served is an error that names the field.
#pragma once

#include <optional>
#include <string_view>

#include "src/server/api_error.h"
#include "src/server/generate_spec.h"

namespace llm_dist::server {

// Nothing when all is well; else `spec` is unspecified.
std::optional<ApiError> parse_generate(Endpoint endpoint, std::string_view body, GenerateSpec& spec);
std::optional<ApiError> parse_tokenize(std::string_view body, TokenizeSpec& spec);
std::optional<ApiError> parse_detokenize(std::string_view body, DetokenizeSpec& spec);

}  // namespace llm_dist::server
