#include "cluster/api/multipart.h"

#include <algorithm>
#include <map>
#include <utility>

#include "src/base/format.h"
#include "src/http/message.h"

namespace llm_dist::cluster {
namespace {

constexpr size_t kMaxParts = 32;
constexpr size_t kMaxHeaderBytes = 8 << 10;
constexpr size_t kMaxBoundaryLineBytes = 1 << 10;
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

enum class Mark { kNone, kBoundary, kUnknown };

// Whether what follows a delimiter makes it a boundary: a longer word that begins like it is content.
Mark mark_before(std::string_view after) {
  if (after.starts_with(' ') || after.starts_with('\t')) return Mark::kBoundary;
  if (after.empty() || after == "-" || after == "\r") return Mark::kUnknown;
  return after.starts_with("--") || after.starts_with("\r\n") ? Mark::kBoundary : Mark::kNone;
}

Result<FormPart> parse_header(std::string_view head, std::string_view boundary_line) {
  FormPart part;
  while (!head.empty()) {
    size_t end = head.find("\r\n");
    std::string_view line = head.substr(0, end);
    head.remove_prefix(end == head.npos ? head.size() : end + 2);
    if (line.starts_with(boundary_line))
      return invalid_argument("a part of the form has no end of its header");
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

Result<MultipartParser> MultipartParser::create(std::string_view content_type,
                                                OnPart on_part,
                                                OnContent on_content) {
  HeaderValue type = parse_header_value(content_type);
  if (type.value != "multipart/form-data") {
    return invalid_argument("the body must be multipart/form-data: curl -F does it");
  }
  const std::string& boundary = type.parameters["boundary"];
  if (boundary.empty() || boundary.size() > kMaxBoundaryBytes) {
    return invalid_argument("Content-Type names no boundary, or one that is too long");
  }
  return MultipartParser("\r\n--" + boundary, std::move(on_part), std::move(on_content));
}

// The first boundary may begin the body: as if a line had ended in front of it.
MultipartParser::MultipartParser(std::string delimiter, OnPart on_part, OnContent on_content)
    : delimiter_(std::move(delimiter)),
      on_part_(std::move(on_part)),
      on_content_(std::move(on_content)),
      pending_("\r\n") {}

Status MultipartParser::feed(std::string_view bytes) {
  pending_ += bytes;
  while (true) {
    ASSIGN_OR_RETURN(bool more, step());
    if (!more) break;
  }
  pending_.erase(0, std::exchange(used_, 0));
  return ok_status();
}

Status MultipartParser::finish() const {
  if (place_ == Place::kEpilogue) return ok_status();
  return invalid_argument(place_ == Place::kPreamble ? "the body has no part: its boundary is not in it"
                                                     : "the body ends before its last boundary");
}

Result<bool> MultipartParser::step() {
  switch (place_) {
    case Place::kPreamble:
    case Place::kContent: return read_content();
    case Place::kBoundary: return read_boundary();
    case Place::kHeader: return read_header();
    case Place::kEpilogue: used_ = pending_.size(); return false;
  }
  return false;
}

// Up to the next boundary, or to where one may have begun.
Result<bool> MultipartParser::read_content() {
  std::string_view rest = std::string_view(pending_).substr(used_);
  size_t at = rest.find(delimiter_);
  if (at == rest.npos) {
    RETURN_IF_ERROR(hand_over(rest.size() - std::min(rest.size(), delimiter_.size() - 1)));
    return false;
  }
  Mark mark = mark_before(rest.substr(at + delimiter_.size(), 2));
  RETURN_IF_ERROR(hand_over(mark == Mark::kNone ? at + 1 : at));
  if (mark != Mark::kBoundary) return mark == Mark::kNone;
  used_ += delimiter_.size();
  place_ = Place::kBoundary;
  return true;
}

Status MultipartParser::hand_over(size_t count) {
  std::string_view content = std::string_view(pending_).substr(used_, count);
  used_ += count;
  return place_ == Place::kContent && !content.empty() ? on_content_(content) : ok_status();
}

// What follows the delimiter in its line.
Result<bool> MultipartParser::read_boundary() {
  std::string_view rest = std::string_view(pending_).substr(used_);
  if (rest.starts_with("--")) {
    place_ = Place::kEpilogue;
    return true;
  }
  size_t end = rest.substr(0, kMaxBoundaryLineBytes).find("\r\n");
  if (end == rest.npos) {
    if (rest.size() < kMaxBoundaryLineBytes) return false;
    return invalid_argument("the line of a boundary is too long");
  }
  if (++num_parts_ > kMaxParts) return invalid_argument(format("the form has more than {} parts", kMaxParts));
  used_ += end + 2;
  place_ = Place::kHeader;
  return true;
}

Result<bool> MultipartParser::read_header() {
  std::string_view rest = std::string_view(pending_).substr(used_);
  const bool blank = rest.starts_with("\r\n");
  size_t end = blank ? 0 : rest.substr(0, kMaxHeaderBytes).find("\r\n\r\n");
  if (end == rest.npos) {
    if (rest.size() < kMaxHeaderBytes) return false;
    return invalid_argument("a part of the form has no end of its header");
  }
  std::string_view boundary_line = std::string_view(delimiter_).substr(2);
  ASSIGN_OR_RETURN(FormPart part, parse_header(rest.substr(0, end), boundary_line));
  used_ += end + (blank ? 2 : 4);
  place_ = Place::kContent;
  RETURN_IF_ERROR(on_part_(std::move(part)));
  return true;
}

}  // namespace llm_dist::cluster
