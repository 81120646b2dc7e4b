#include "cluster/api/request_fields.h"

#include <algorithm>
#include <charconv>

#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

constexpr size_t kMaxKeyBytes = 255;
constexpr size_t kMaxProjectBytes = 64;

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; });
}

}  // namespace

Result<int64_t> parse_number(const std::string& text, const char* name, int64_t low, int64_t high) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return invalid_argument(format("'{}' must be a number from {} to {}", name, low, high));
  }
  return value;
}

Result<std::string> idempotency_key(const http::Request& request) {
  const std::string* key = request.headers.find("Idempotency-Key");
  if (key == nullptr) return std::string();
  if (!key->empty() && key->size() <= kMaxKeyBytes && is_printable(*key)) return *key;
  return invalid_argument(format("Idempotency-Key must be 1 to {} printable characters", kMaxKeyBytes));
}

Result<std::string> project_of(const http::Request& request) {
  const std::string* project = request.headers.find("OpenAI-Project");
  if (project == nullptr || project->empty()) return std::string("default");
  // In a header other characters have no encoding that is agreed on (RFC 9110, 5.5).
  if (project->size() <= kMaxProjectBytes && is_printable(*project)) return *project;
  return invalid_argument(
      format("OpenAI-Project may have {} printable ASCII characters; 'project' in the body takes others",
             kMaxProjectBytes));
}

}  // namespace llm_dist::cluster
