#include "src/http/message.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "src/base/format.h"

namespace llm_dist::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The part before the separator; `rest` keeps what follows it.
std::string_view next_piece(std::string_view& rest, char separator) {
  size_t at = rest.find(separator);
  std::string_view piece = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return piece;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

struct Reason {
  int status;
  std::string_view phrase;
};

constexpr std::array kReasons = {
    Reason{100, "Continue"},
    Reason{200, "OK"},
    Reason{201, "Created"},
    Reason{202, "Accepted"},
    Reason{204, "No Content"},
    Reason{206, "Partial Content"},
    Reason{301, "Moved Permanently"},
    Reason{302, "Found"},
    Reason{304, "Not Modified"},
    Reason{307, "Temporary Redirect"},
    Reason{308, "Permanent Redirect"},
    Reason{400, "Bad Request"},
    Reason{401, "Unauthorized"},
    Reason{403, "Forbidden"},
    Reason{404, "Not Found"},
    Reason{405, "Method Not Allowed"},
    Reason{408, "Request Timeout"},
    Reason{409, "Conflict"},
    Reason{412, "Precondition Failed"},
    Reason{413, "Content Too Large"},
    Reason{415, "Unsupported Media Type"},
    Reason{417, "Expectation Failed"},
    Reason{422, "Unprocessable Content"},
    Reason{429, "Too Many Requests"},
    Reason{431, "Request Header Fields Too Large"},
    Reason{499, "Client Closed Request"},
    Reason{500, "Internal Server Error"},
    Reason{501, "Not Implemented"},
    Reason{502, "Bad Gateway"},
    Reason{503, "Service Unavailable"},
    Reason{504, "Gateway Timeout"},
    Reason{505, "HTTP Version Not Supported"},
};

}  // namespace

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

void Headers::set(std::string name, std::string value) {
  std::erase_if(fields_, [&](const Field& field) { return equals_ignoring_case(field.first, name); });
  add(std::move(name), std::move(value));
}

const std::string* Headers::find(std::string_view name) const {
  for (const auto& [field, value] : fields_)
    if (equals_ignoring_case(field, name)) return &value;
  return nullptr;
}

size_t Headers::count(std::string_view name) const {
  return static_cast<size_t>(std::count_if(fields_.begin(), fields_.end(), [&](const Field& field) {
    return equals_ignoring_case(field.first, name);
  }));
}

bool Headers::has_token(std::string_view name, std::string_view token) const {
  for (const auto& [field, value] : fields_) {
    if (!equals_ignoring_case(field, name)) continue;
    std::string_view rest = value;
    while (!rest.empty())
      if (equals_ignoring_case(trim(next_piece(rest, ',')), token)) return true;
  }
  return false;
}

std::string_view Request::path_param(std::string_view name) const {
  for (const auto& [key, value] : path_params)
    if (key == name) return value;
  return {};
}

std::string Request::query_param(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    std::string_view value = next_piece(rest, '&');
    std::string_view key = next_piece(value, '=');
    if (percent_decode(key, true) == name) return percent_decode(value, true);
  }
  return {};
}

std::optional<uint64_t> Request::content_length() const {
  const std::string* text = headers.find("Content-Length");
  uint64_t length = 0;
  if (text == nullptr) return std::nullopt;
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), length);
  return error == std::errc() && end == text->data() + text->size() ? std::optional(length) : std::nullopt;
}

Response plain_error(int status, const std::string& message) {
  return {
      .status = status, .content_type = "text/plain; charset=utf-8", .headers = {}, .body = message + "\n"};
}

std::string_view reason_phrase(int status) {
  for (const Reason& reason : kReasons)
    if (reason.status == status) return reason.phrase;
  return "Unknown";
}

std::string percent_decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    if (escape) {
      decoded += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      decoded += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

bool secure_equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  // volatile keeps the compiler from leaving the loop at the first difference.
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference = static_cast<unsigned char>(
        difference | (static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i])));
  return difference == 0;
}

}  // namespace llm_dist::http
