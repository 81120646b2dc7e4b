// Numbers of bytes as people write them on a command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::launch {

// "80GiB", "512MiB", "17179869184"; `flag` is for the error.
Result<int64_t> parse_bytes(const std::string& flag, const std::string& text);

// "4KiB:64MiB" (from the one to the other, doubling), "16KiB,1MiB", or both in one list.
Result<std::vector<int64_t>> parse_byte_sizes(const std::string& flag, const std::string& text);

}  // namespace llm_dist::launch
