// JSON for what cannot include a JSON library.
#pragma once

#include <string>
#include <string_view>

namespace llm_dist {

// A JSON string, quotes included, of one line: control characters are escaped, bytes that are no UTF-8
// become U+FFFD (RFC 8259, 7).
std::string json_quoted(std::string_view text);

}  // namespace llm_dist
