// Files that people write, read whole: configuration, keys, templates.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/status.h"

namespace llm_dist {

// The bytes of `path`, a file or what a pipe brings until it ends. not_found or failed_precondition with the
// system's reason where it cannot be read, a folder among them; invalid_argument above `max_bytes`, so that a
// wrong name, of a device or a model's weights, takes no memory.
Result<std::string> read_small_file(const std::string& path, int64_t max_bytes = int64_t{16} << 20);

}  // namespace llm_dist
