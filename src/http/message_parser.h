// The incremental HTTP/1.1 parser: bytes in, a message out. Internal to this folder; the only face of Beast.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "src/http/message.h"

namespace llm_dist::http {

struct ParserLimits {
  size_t max_header_bytes = 0;
  uint64_t max_body_bytes = 0;
};

struct ParseError {
  int status = 0;  // what a server answers: 400, 413, 431, 501; 0 while all is well
  std::string message;
};

// One request. Refuses what lets two servers disagree on where a request ends (RFC 9112, 6.3 and 11.2): both
// lengths at once, transfer codings other than "chunked", bare line feeds, blanks before a colon.
class RequestParser {
 public:
  explicit RequestParser(ParserLimits limits);
  ~RequestParser();

  // How many bytes it took; the rest belongs to the next request or is a header that is not whole yet.
  size_t feed(std::string_view bytes);
  const ParseError& error() const;
  bool header_done() const;
  bool done() const;
  bool http_1_0() const;
  bool keep_alive() const;
  // The request, without its peer. Method and headers may be read from header_done() on.
  Request& request();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// One response; the body is handed over as it comes.
class ResponseParser {
 public:
  // on_body returns false to stop; feed() then takes no more.
  using OnBody = std::function<bool(std::string_view)>;
  // head_request: the response has no body whatever its headers say.
  ResponseParser(ParserLimits limits, bool head_request, OnBody on_body);
  ~ResponseParser();

  size_t feed(std::string_view bytes);
  // The peer closed: ends a body that has no length, and is an error in the middle of any other.
  void feed_eof();
  const ParseError& error() const;
  bool header_done() const;
  bool done() const;
  bool stopped() const;
  bool keep_alive() const;
  // Status, content type and headers; the body went to on_body.
  Response& response();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llm_dist::http
