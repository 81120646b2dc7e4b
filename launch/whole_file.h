// Small files that another process waits for.
#pragma once

#include <string>

#include "src/base/status.h"

namespace llm_dist::launch {

// Whole or not at all: who finds `path`, or the file that it is a link to, reads all of `text`. A device or a
// pipe is written to as it is. unavailable when it cannot be written, for
// example on a full disk; nothing is left then.
Status write_whole_file(const std::string& path, const std::string& text);

// Before the work whose result goes there: whether that write could succeed. Fine for "", which is no file.
Status check_writable(const std::string& flag, const std::string& path);

}  // namespace llm_dist::launch
