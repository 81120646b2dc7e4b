// multipart/form-data (RFC 7578): the parts of a body that is held in memory, without copying their contents.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::cluster {

struct FormPart {
  std::string name{};
  std::optional<std::string> filename{};
  std::string_view content{};  // within the body
};

// invalid_argument: another content type, no boundary, a part without a name, too many parts, a body that
// ends before its last boundary.
Result<std::vector<FormPart>> parse_multipart(std::string_view content_type, std::string_view body);

}  // namespace llm_dist::cluster
