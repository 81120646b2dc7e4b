// What a connection brings: the same requests, or the same refusal, however the bytes are cut into packets,
// and nothing that two servers could read differently.
#include <algorithm>
#include <cctype>

#include "src/http/message_parser.h"
#include "tests/fuzz/fuzz.h"

namespace llm_dist::fuzz {
namespace {

constexpr http::ParserLimits kLimits{.max_header_bytes = 2048, .max_body_bytes = 4096};

struct Outcome {
  std::vector<std::string> messages;  // each as one text
  bool refused = false;

  bool operator==(const Outcome&) const = default;
};

std::string show(const http::Headers& headers) {
  std::string text;
  for (const auto& [name, value] : headers) text += "\n" + name + ": " + value;
  return text;
}

void expect_plain(const http::Headers& headers) {
  constexpr std::string_view kBreaks("\r\n\0", 3);
  size_t bytes = 0;
  for (const auto& [name, value] : headers) {
    CHECK(!name.empty() && name.find_first_of(" \t:") == name.npos, "'{}'", name);
    CHECK(
        name.find_first_of(kBreaks) == name.npos && value.find_first_of(kBreaks) == value.npos, "{}", value);
    bytes += name.size() + value.size();
  }
  CHECK_LE(bytes, kLimits.max_header_bytes);
}

void expect_request(const http::Request& request, bool http_1_0) {
  CHECK(request.path.starts_with('/') || (request.path == "*" && request.method == "OPTIONS"),
        "{}",
        request.path);
  CHECK(request.path.find_first_of("?# \r\n") == request.path.npos, "{}", request.path);
  CHECK_LE(request.body.size(), kLimits.max_body_bytes);
  const http::Headers& headers = request.headers;
  expect_plain(headers);
  const std::string* length = headers.find("Content-Length");
  const std::string* coding = headers.find("Transfer-Encoding");
  CHECK(length == nullptr || coding == nullptr);
  CHECK(coding == nullptr || (http::equals_ignoring_case(*coding, "chunked") && !http_1_0), "{}", *coding);
  CHECK_LE(headers.count("Content-Length"), 1u);
  if (length != nullptr) {
    bool digits =
        std::all_of(length->begin(), length->end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    CHECK(digits && std::stoull(*length) == request.body.size(), "{}", *length);
  }
  CHECK(length != nullptr || coding != nullptr || request.body.empty(), "a body without a length");
  CHECK(headers.count("Host") == 1 || (http_1_0 && headers.count("Host") == 0));
  CHECK(http::percent_decode(request.query, true).size() <= request.query.size());
  CHECK(request.query_param("a").size() <= request.query.size());
}

// As a connection reads: packets of `packet` bytes, what a parser leaves is offered again with the next.
Outcome read_requests(std::string_view bytes, size_t packet) {
  Outcome outcome;
  std::string inbound;
  auto parser = std::make_unique<http::RequestParser>(kLimits);
  while (!bytes.empty() && !outcome.refused) {
    inbound += bytes.substr(0, packet);
    bytes.remove_prefix(std::min(bytes.size(), packet));
    while (!inbound.empty() && !outcome.refused) {
      size_t taken = parser->feed(inbound);
      CHECK_LE(taken, inbound.size());
      inbound.erase(0, taken);
      outcome.refused = parser->error().status != 0;
      if (parser->done() && !outcome.refused) {
        const http::Request& request = parser->request();
        expect_request(request, parser->http_1_0());
        outcome.messages.push_back(request.method + " " + request.path + "?" + request.query +
                                   show(request.headers) + "\n" + request.body);
        parser = std::make_unique<http::RequestParser>(kLimits);
      } else if (taken == 0) {
        break;
      }
    }
    // What a connection takes for a line that never ends.
    outcome.refused |= inbound.size() > kLimits.max_header_bytes;
  }
  return outcome;
}

// The same requests, as far as neither is refused: a header that will be refused may be waited for first, and
// a line above a limit be taken whole and refused in pieces.
bool agree(const Outcome& a, const Outcome& b) {
  size_t both = std::min(a.messages.size(), b.messages.size());
  bool same =
      std::equal(a.messages.begin(), a.messages.begin() + static_cast<ptrdiff_t>(both), b.messages.begin());
  return same && (a.refused || b.refused || a.messages.size() == b.messages.size());
}

Outcome read_response(std::string_view bytes, size_t packet) {
  Outcome outcome;
  std::string body;
  std::string inbound;
  http::ResponseParser parser(kLimits, false, [&](std::string_view piece) {
    body += piece;
    return true;
  });
  while (!bytes.empty() && !parser.done() && parser.error().status == 0) {
    inbound += bytes.substr(0, packet);
    bytes.remove_prefix(std::min(bytes.size(), packet));
    while (!inbound.empty() && !parser.done() && parser.error().status == 0) {
      size_t taken = parser.feed(inbound);
      CHECK_LE(taken, inbound.size());
      inbound.erase(0, taken);
      if (taken == 0) break;
    }
  }
  if (!parser.done() && parser.error().status == 0) parser.feed_eof();
  outcome.refused = parser.error().status != 0;
  if (outcome.refused) {
    CHECK(!parser.error().message.empty());
    return outcome;
  }
  CHECK_LE(body.size(), kLimits.max_body_bytes);
  expect_plain(parser.response().headers);
  if (parser.done())
    outcome.messages.push_back(std::to_string(parser.response().status) + show(parser.response().headers) +
                               "\n" + body);
  return outcome;
}

}  // namespace
}  // namespace llm_dist::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace llm_dist;
  std::string_view bytes = fuzz::text_of(data, size);
  if (bytes.empty()) return 0;
  auto requests = fuzz::read_requests(bytes, bytes.size());
  auto response = fuzz::read_response(bytes, bytes.size());
  for (size_t packet : {size_t{1}, size_t{7}, (bytes.size() + 1) / 2}) {
    CHECK(fuzz::agree(fuzz::read_requests(bytes, packet), requests), "requests in packets of {}", packet);
    CHECK(fuzz::agree(fuzz::read_response(bytes, packet), response), "a response in packets of {}", packet);
  }
  return 0;
}
