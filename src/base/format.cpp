#include "src/base/format.h"

#include <cstdio>

namespace llm_dist {

std::string format_value(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string format_pieces(std::string_view pattern, std::initializer_list<std::string> values) {
  std::string out;
  const auto* value = values.begin();
  size_t at = 0;
  while (at < pattern.size()) {
    size_t brace = pattern.find("{}", at);
    if (brace == std::string_view::npos || value == values.end()) break;
    out.append(pattern.substr(at, brace - at));
    out.append(*value++);
    at = brace + 2;
  }
  out.append(pattern.substr(at));
  return out;
}

}  // namespace llm_dist
