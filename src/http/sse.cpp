#include "src/http/sse.h"

namespace llm_dist::http {

std::string sse_event(std::string_view data) {
  std::string text;
  text.reserve(data.size() + 8);
  while (true) {
    size_t end = data.find_first_of("\r\n");
    text.append("data: ").append(data.substr(0, end)).append("\n");
    if (end == std::string_view::npos) break;
    bool crlf = data[end] == '\r' && end + 1 < data.size() && data[end + 1] == '\n';
    data.remove_prefix(end + (crlf ? 2 : 1));
  }
  return text.append("\n");
}

Headers sse_headers() {
  return {{"Content-Type", "text/event-stream; charset=utf-8"},
          {"Cache-Control", "no-cache"},
          {"X-Accel-Buffering", "no"}};
}

bool SseParser::feed(std::string_view bytes) {
  while (!bytes.empty() && !stopped_) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    size_t end = bytes.find_first_of("\r\n");
    line_.append(bytes.substr(0, end));
    if (end == std::string_view::npos) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    stopped_ = !finish_line();
    line_.clear();
  }
  return !stopped_;
}

bool SseParser::finish_line() {
  std::string_view line = line_;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (first_line_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  first_line_ = false;
  if (line.empty()) return dispatch();
  size_t colon = line.find(':');
  if (colon == 0) return true;
  std::string_view value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  take_field(line.substr(0, colon), value);
  return true;
}

void SseParser::take_field(std::string_view name, std::string_view value) {
  if (name == "data") {
    if (has_data_) event_.data += '\n';
    event_.data += value;
    has_data_ = true;
  } else if (name == "event") {
    event_.event = value;
  } else if (name == "id" && value.find('\0') == std::string_view::npos) {
    event_.id = value;
  }
}

bool SseParser::dispatch() {
  bool more = true;
  if (has_data_) {
    if (event_.event.empty()) event_.event = "message";
    more = on_event_(event_);
  }
  event_.event.clear();
  event_.data.clear();
  has_data_ = false;
  return more;
}

}  // namespace llm_dist::http
