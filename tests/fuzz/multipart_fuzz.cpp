// A form: the first line is its Content-Type, the rest its body. However it is cut into pieces, its parts are
// the same; they lie in the body, in order; and the form that they make reads back as them.
#include <random>

#include "cluster/api/multipart.h"
#include "tests/fuzz/fuzz.h"

namespace llm_dist::fuzz {
namespace {

constexpr std::string_view kBoundary = "boundary-that-no-input-has";
constexpr size_t kWhole = SIZE_MAX;

struct Part {
  cluster::FormPart head;
  std::string content;
  bool operator==(const Part& other) const {
    return head.name == other.head.name && head.filename == other.head.filename && content == other.content;
  }
};

// In pieces of 1 to `max_piece` bytes, the same each time.
Result<std::vector<Part>> read_form(std::string_view type, std::string_view body, size_t max_piece) {
  std::vector<Part> parts;
  ASSIGN_OR_RETURN(cluster::MultipartParser parser,
                   cluster::MultipartParser::create(
                       type,
                       [&](cluster::FormPart head) {
                         parts.push_back({std::move(head), ""});
                         return ok_status();
                       },
                       [&](std::string_view content) {
                         CHECK(!content.empty() && !parts.empty());
                         parts.back().content += content;
                         return ok_status();
                       }));
  std::minstd_rand random(static_cast<unsigned>(body.size()) + 1);
  while (!body.empty()) {
    size_t count = max_piece == kWhole ? body.size() : std::min(body.size(), 1 + random() % max_piece);
    RETURN_IF_ERROR(parser.feed(body.substr(0, count)));
    body.remove_prefix(count);
  }
  RETURN_IF_ERROR(parser.finish());
  return parts;
}

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (char c : text) result += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return result + "\"";
}

std::string render(const std::vector<Part>& parts) {
  std::string body;
  for (const Part& part : parts) {
    body += "--" + std::string(kBoundary) +
            "\r\nContent-Disposition: form-data; name=" + in_quotes(part.head.name);
    if (part.head.filename) body += "; filename=" + in_quotes(*part.head.filename);
    body += "\r\n\r\n" + part.content + "\r\n";
  }
  return body + "--" + std::string(kBoundary) + "--\r\n";
}

void expect_round_trip(const std::vector<Part>& parts, std::string_view body) {
  if (parts.empty() || body.find(kBoundary) != body.npos) return;
  auto again = read_form("multipart/form-data; boundary=" + std::string(kBoundary), render(parts), kWhole);
  CHECK(again.ok(), "{}", again.status().to_string());
  CHECK(again.value() == parts);
}

void expect_in_order(const std::vector<Part>& parts, std::string_view body) {
  size_t end = 0;
  for (const Part& part : parts) {
    CHECK(!part.head.name.empty());
    end = body.find(part.content, end);
    CHECK(end != body.npos);
    end += part.content.size();
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
  auto parts = fuzz::read_form(content_type, body, fuzz::kWhole);
  for (size_t max_piece : {1, 7, 100}) {
    auto pieces = fuzz::read_form(content_type, body, max_piece);
    CHECK_EQ(pieces.ok(), parts.ok());
    CHECK(parts.ok() ? pieces.value() == parts.value()
                     : pieces.status().message() == parts.status().message());
  }
  if (!parts.ok()) {
    fuzz::expect_message(parts.status());
    return 0;
  }
  CHECK_LE(parts->size(), 32u);
  fuzz::expect_in_order(*parts, body);
  fuzz::expect_round_trip(*parts, body);
  return 0;
}
