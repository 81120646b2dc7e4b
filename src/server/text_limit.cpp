#include "src/server/text_limit.h"

#include <algorithm>

#include "src/base/format.h"

namespace llm_dist::server {
namespace {

constexpr int64_t kContexts = 4;
constexpr int64_t kLeastTokens = 256 << 10;
constexpr int64_t kBytesPerToken = 4;  // of usual text

}  // namespace

int64_t most_counted_tokens(int64_t max_model_len) {
  return std::max(kContexts * max_model_len, kLeastTokens);
}

int64_t most_text_bytes(int64_t max_model_len) { return kBytesPerToken * most_counted_tokens(max_model_len); }

std::optional<std::string> beyond_rendering(int64_t max_model_len, size_t json_bytes) {
  const int64_t most = most_text_bytes(max_model_len);
  if (static_cast<int64_t>(json_bytes) <= most) return std::nullopt;
  return format(
      "this model's maximum context length is {} tokens; a conversation of {} bytes is not rendered, the "
      "most is "
      "{}",
      max_model_len,
      json_bytes,
      most);
}

}  // namespace llm_dist::server
