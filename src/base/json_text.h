// JSON for what cannot include a JSON library.
#pragma once

#include <string>
#include <string_view>

namespace llm_dist {

// A JSON string, quotes included, of one line: control characters are escaped, bytes that are no UTF-8
// become U+FFFD (RFC 8259, 7).
std::string json_quoted(std::string_view text);

// More than any request needs: what walks a value recursively would run out of stack.
inline constexpr int kMaxJsonDepth = 64;

// Whether arrays and objects are nested deeper than that. `text` need not be valid.
bool json_is_too_deep(std::string_view text);

}  // namespace llm_dist
