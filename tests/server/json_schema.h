// Checks JSON values against the part of JSON Schema that docs/openapi.json uses.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace llm_dist::server {

// Empty when `value` fits `schema`; else where it does not, and why. `document`: what "$ref" refers to. A
// keyword that this does not know is a misfit too: nothing goes unchecked.
std::string schema_misfit(const nlohmann::json& document,
                          const nlohmann::json& schema,
                          const nlohmann::json& value);

}  // namespace llm_dist::server
