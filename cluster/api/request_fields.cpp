#include "cluster/api/request_fields.h"

#include <algorithm>
#include <charconv>

#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

constexpr size_t kMaxKeyBytes = 255;
constexpr size_t kMaxProjectBytes = 64;

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
  bool printable = std::all_of(key->begin(), key->end(), [](char c) { return c >= ' ' && c < 0x7f; });
  if (!key->empty() && key->size() <= kMaxKeyBytes && printable) return *key;
  return invalid_argument(format("Idempotency-Key must be 1 to {} printable characters", kMaxKeyBytes));
}

Result<std::string> project_of(const http::Request& request) {
  const std::string* project = request.headers.find("OpenAI-Project");
  if (project == nullptr || project->empty()) return std::string("default");
  if (project->size() <= kMaxProjectBytes) return *project;
  return invalid_argument(format("OpenAI-Project may have {} bytes", kMaxProjectBytes));
}

}  // namespace llm_dist::cluster
