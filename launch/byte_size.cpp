#include "launch/byte_size.h"

#include <sstream>
#include <utility>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {
constexpr double kMostBytes = 0x1p62;
}

Result<int64_t> parse_bytes(const std::string& flag, const std::string& text) {
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    return invalid_argument(
        format("{} {} is no number of bytes: write 80GiB, 512MiB or 17179869184", flag, text));
  }
  std::string unit = text.substr(used);
  const std::pair<const char*, double> kUnits[] = {{"", 1},
                                                   {"B", 1},
                                                   {"K", 0x1p10},
                                                   {"KiB", 0x1p10},
                                                   {"M", 0x1p20},
                                                   {"MiB", 0x1p20},
                                                   {"G", 0x1p30},
                                                   {"GiB", 0x1p30},
                                                   {"KB", 1e3},
                                                   {"MB", 1e6},
                                                   {"GB", 1e9},
                                                   {"TiB", 0x1p40}};
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    if (value * factor >= 1 && value * factor < kMostBytes) return static_cast<int64_t>(value * factor);
    return invalid_argument(format("{} {}: not a number of bytes that memory may have", flag, text));
  }
  return invalid_argument(
      format("{} {}: the unit {} is none of KiB, MiB, GiB, TiB, KB, MB, GB", flag, text, unit));
}

Result<std::vector<int64_t>> parse_byte_sizes(const std::string& flag, const std::string& text) {
  std::vector<int64_t> sizes;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    size_t colon = part.find(':');
    ASSIGN_OR_RETURN(int64_t first, parse_bytes(flag, part.substr(0, colon)));
    int64_t last = first;
    if (colon != std::string::npos) {
      ASSIGN_OR_RETURN(last, parse_bytes(flag, part.substr(colon + 1)));
    }
    if (first <= 0 || last < first) return invalid_argument(format("{} {}: no sizes", flag, part));
    for (int64_t size = first; size <= last; size *= 2) sizes.push_back(size);
  }
  if (sizes.empty()) return invalid_argument(format("{} names no sizes", flag));
  return sizes;
}

}  // namespace llm_dist::launch
