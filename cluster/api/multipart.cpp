#include "cluster/api/multipart.h"

#include <algorithm>
#include <map>

#include "src/base/format.h"
#include "src/http/message.h"

namespace llm_dist::cluster {
namespace {

constexpr size_t kMaxParts = 32;
constexpr size_t kMaxHeaderBytes = 8 << 10;
constexpr size_t kMaxBoundaryBytes = 70;  // RFC 2046, 5.1.1

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}
std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// A header value: what stands before the first ';', and its parameters.
struct HeaderValue {
  std::string value;
  std::map<std::string, std::string> parameters;
};

// "…" up to its end, with backslashes taken out; `text` becomes what follows.
std::string take_quoted(std::string_view& text) {
  std::string value;
  size_t i = 1;
  for (; i < text.size() && text[i] != '"'; ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\')) ++i;
    value += text[i];
  }
  text.remove_prefix(std::min(text.size(), i + 1));
  return value;
}

HeaderValue parse_header_value(std::string_view text) {
  size_t end = text.find(';');
  HeaderValue header{.value = lower(trim(text.substr(0, end))), .parameters = {}};
  text.remove_prefix(std::min(text.size(), end));
  while (!text.empty()) {
    text = trim(text.substr(1));  // the ';'
    size_t equals = text.find_first_of("=;");
    if (equals == text.npos || text[equals] == ';') {
      text.remove_prefix(std::min(text.size(), equals));
      continue;
    }
    std::string name = lower(trim(text.substr(0, equals)));
    text = trim(text.substr(equals + 1));
    bool quoted = text.starts_with('"');
    std::string value = quoted ? take_quoted(text) : std::string(trim(text.substr(0, text.find(';'))));
    text.remove_prefix(std::min(text.size(), text.find(';')));
    header.parameters.emplace(std::move(name), std::move(value));
  }
  return header;
}

// Where the next boundary begins; npos: there is none. A longer word that begins like it is content.
size_t find_boundary(std::string_view body, const std::string& delimiter, size_t from) {
  for (size_t at = body.find(delimiter, from); at != body.npos; at = body.find(delimiter, at + 1)) {
    std::string_view after = body.substr(at + delimiter.size(), 2);
    if (after == "--" || after == "\r\n" || after.starts_with(' ') || after.starts_with('\t')) return at;
  }
  return body.npos;
}

Result<FormPart> parse_part(std::string_view text) {
  size_t blank = text.starts_with("\r\n") ? 0 : text.find("\r\n\r\n");
  if (blank == text.npos || blank > kMaxHeaderBytes) {
    return invalid_argument("a part of the form has no end of its header");
  }
  std::string_view head = text.substr(0, blank);
  FormPart part{.content = text.substr(blank + (blank == 0 ? 2 : 4))};
  while (!head.empty()) {
    size_t end = head.find("\r\n");
    std::string_view line = head.substr(0, end);
    head.remove_prefix(end == head.npos ? head.size() : end + 2);
    size_t colon = line.find(':');
    if (colon == line.npos || !http::equals_ignoring_case(trim(line.substr(0, colon)), "Content-Disposition"))
      continue;
    HeaderValue disposition = parse_header_value(line.substr(colon + 1));
    if (disposition.value != "form-data") break;
    part.name = disposition.parameters["name"];
    if (auto filename = disposition.parameters.find("filename"); filename != disposition.parameters.end()) {
      part.filename = filename->second;
    }
  }
  if (part.name.empty()) return invalid_argument("a part of the form has no name");
  return part;
}

}  // namespace

Result<std::vector<FormPart>> parse_multipart(std::string_view content_type, std::string_view body) {
  HeaderValue type = parse_header_value(content_type);
  if (type.value != "multipart/form-data") {
    return invalid_argument("the body must be multipart/form-data: curl -F does it");
  }
  const std::string& boundary = type.parameters["boundary"];
  if (boundary.empty() || boundary.size() > kMaxBoundaryBytes) {
    return invalid_argument("Content-Type names no boundary, or one that is too long");
  }
  const std::string delimiter = "\r\n--" + boundary;
  // The first one may begin the body; what stands before it means nothing.
  std::string_view first = std::string_view(delimiter).substr(2);
  size_t at = body.starts_with(first) ? 0 : find_boundary(body, delimiter, 0);
  if (at == body.npos) return invalid_argument("the body has no part: its boundary is not in it");
  at += body.starts_with(first) ? first.size() : delimiter.size();
  std::vector<FormPart> parts;
  while (!body.substr(at).starts_with("--")) {
    size_t line_end = body.find("\r\n", at);
    size_t end = line_end == body.npos ? body.npos : find_boundary(body, delimiter, line_end);
    if (end == body.npos) return invalid_argument("the body ends before its last boundary");
    if (parts.size() == kMaxParts)
      return invalid_argument(format("the form has more than {} parts", kMaxParts));
    // An empty part's delimiter begins with the line break that ends its header.
    size_t begin = line_end + 2;
    ASSIGN_OR_RETURN(FormPart part, parse_part(end < begin ? "" : body.substr(begin, end - begin)));
    parts.push_back(std::move(part));
    at = end + delimiter.size();
  }
  return parts;
}

}  // namespace llm_dist::cluster
