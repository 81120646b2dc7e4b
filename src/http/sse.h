// Server-sent events (WHATWG HTML, section 9.2): writing them, and an incremental parser.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "src/http/message.h"

namespace llm_dist::http {

// "data: <data>\n\n"; each line of a multi-line text gets its own "data: ".
std::string sse_event(std::string_view data);

// Content-Type text/event-stream, and what keeps proxies from caching or buffering it.
Headers sse_headers();

struct SseEvent {
  std::string event;  // "message" unless the stream named one
  std::string data;   // its data lines, joined by '\n'
  std::string id;     // the last id seen in the stream
};

// Takes the body in pieces split anywhere (inside a line, between CR and LF) and reports whole events.
// Comments and events without data are dropped; an event the stream ends in the middle of is never reported.
class SseParser {
 public:
  // Returns false to stop.
  using OnEvent = std::function<bool(const SseEvent&)>;
  explicit SseParser(OnEvent on_event) : on_event_(std::move(on_event)) {}

  // False once the callback asked to stop; later bytes are then ignored.
  bool feed(std::string_view bytes);

 private:
  bool finish_line();
  void take_field(std::string_view name, std::string_view value);
  bool dispatch();

  OnEvent on_event_;
  std::string line_;
  SseEvent event_;
  bool has_data_ = false;
  bool after_cr_ = false;
  bool first_line_ = true;
  bool stopped_ = false;
};

}  // namespace llm_dist::http
