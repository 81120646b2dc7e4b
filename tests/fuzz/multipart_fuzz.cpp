// A form: the first line is its Content-Type, the rest its body. The parts lie in the body, apart and in
// order, and the form that they make reads back as them.
#include "cluster/api/multipart.h"
#include "tests/fuzz/fuzz.h"

namespace llm_dist::fuzz {
namespace {

using cluster::FormPart;
constexpr std::string_view kBoundary = "boundary-that-no-input-has";

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (char c : text) result += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return result + "\"";
}

std::string render(const std::vector<FormPart>& parts) {
  std::string body;
  for (const FormPart& part : parts) {
    body +=
        "--" + std::string(kBoundary) + "\r\nContent-Disposition: form-data; name=" + in_quotes(part.name);
    if (part.filename) body += "; filename=" + in_quotes(*part.filename);
    body += "\r\n\r\n" + std::string(part.content) + "\r\n";
  }
  return body + "--" + std::string(kBoundary) + "--\r\n";
}

void expect_round_trip(const std::vector<FormPart>& parts, std::string_view body) {
  if (parts.empty() || body.find(kBoundary) != body.npos) return;
  std::string again_body = render(parts);
  auto again =
      cluster::parse_multipart("multipart/form-data; boundary=" + std::string(kBoundary), again_body);
  CHECK(again.ok(), "{}", again.status().to_string());
  CHECK_EQ(again->size(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    CHECK_EQ((*again)[i].name, parts[i].name);
    CHECK((*again)[i].filename == parts[i].filename && (*again)[i].content == parts[i].content);
  }
}

}  // namespace
}  // namespace llm_dist::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  std::string_view input = fuzz::text_of(data, size);
  size_t line_end = input.find('\n');
  std::string_view content_type = input.substr(0, line_end);
  std::string_view body = line_end == input.npos ? std::string_view() : input.substr(line_end + 1);
  auto parts = cluster::parse_multipart(content_type, body);
  if (!parts.ok()) {
    fuzz::expect_message(parts.status());
    return 0;
  }
  CHECK_LE(parts->size(), 32u);
  const char* end = body.data();
  for (const auto& part : *parts) {
    CHECK(!part.name.empty());
    CHECK(part.content.data() >= end &&
          part.content.data() + part.content.size() <= body.data() + body.size());
    end = part.content.data() + part.content.size();
  }
  fuzz::expect_round_trip(*parts, body);
  return 0;
}
