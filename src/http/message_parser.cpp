#include "src/http/message_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "src/base/format.h"

namespace llm_dist::http {
namespace {

namespace beast_http = boost::beast::http;
using ErrorCode = boost::beast::error_code;
using BeastView = boost::beast::string_view;

std::string_view view(BeastView text) { return {text.data(), text.size()}; }

// Collects header fields and body pieces; derived classes add the start line.
template <bool is_request>
class CollectingParser : public beast_http::basic_parser<is_request> {
 public:
  explicit CollectingParser(ParserLimits limits) : header_left_(limits.max_header_bytes) {
    this->header_limit(static_cast<uint32_t>(limits.max_header_bytes));
    this->body_limit(limits.max_body_bytes);
    this->eager(true);
  }

  size_t feed(std::string_view bytes) {
    size_t all = 0;
    while (size_t taken = feed_some(bytes.substr(all))) all += taken;
    return all;
  }

  Headers headers_;
  ParseError error_;
  bool http_1_0_ = false;

 protected:
  virtual void check_header() = 0;
  virtual bool take_body(std::string_view piece) = 0;

  static ErrorCode refused() { return make_error_code(beast_http::error::bad_value); }

 private:
  // How near to its limit Beast refuses a header hangs on how the bytes come: so it gets no more of them than
  // the limit until the header has ended.
  size_t feed_some(std::string_view bytes) {
    if (error_.status != 0 || this->is_done() || bytes.empty() || is_begin_of_last_chunk(bytes)) return 0;
    const bool in_header = !this->is_header_done();
    const bool all_left = in_header && bytes.size() >= header_left_;
    if (all_left) bytes = bytes.substr(0, header_left_);
    ErrorCode code;
    size_t taken = this->put(boost::asio::const_buffer(bytes.data(), bytes.size()), code);
    if (in_header) header_left_ -= std::min(taken, header_left_);
    if (all_left && !this->is_header_done() && (!code || code == beast_http::error::need_more))
      code = beast_http::error::header_limit;
    if (code && code != beast_http::error::need_more && error_.status == 0) error_ = describe(code);
    return error_.status == 0 ? taken : 0;
  }

  // Beast (1.81) looks at the line of the last chunk once, and asserts that it then gets all five bytes that
  // end a body: a peer that sends them one by one would end a program built with assertions. The line may
  // hold more than a zero ("00", "0;a").
  bool is_begin_of_last_chunk(std::string_view bytes) const {
    return in_body_ && this->chunked() && chunk_left_ == 0 && bytes.size() < 5 && bytes.starts_with('0');
  }

  static ParseError describe(ErrorCode code) {
    if (code == beast_http::error::header_limit) return {431, "the request's header fields are too large"};
    if (code == beast_http::error::body_limit) return {413, "the request body is too large"};
    if (code == beast_http::error::bad_version) return {400, "not an HTTP/1.0 or HTTP/1.1 message"};
    return {400, "malformed HTTP message: " + code.message()};
  }

  void on_field_impl(beast_http::field, BeastView name, BeastView value, ErrorCode& code) override {
    code = {};
    // Fields after a chunked body are trailers; nothing here acts on them.
    if (!in_body_) headers_.add(std::string(view(name)), std::string(view(value)));
  }
  void on_header_impl(ErrorCode& code) override {
    in_body_ = true;
    check_header();
    code = error_.status == 0 ? ErrorCode() : refused();
  }
  void on_body_init_impl(const boost::optional<uint64_t>&, ErrorCode& code) override { code = {}; }
  size_t on_body_impl(BeastView piece, ErrorCode& code) override {
    code = take_body(view(piece)) ? ErrorCode() : refused();
    return piece.size();
  }
  void on_chunk_header_impl(uint64_t size, BeastView, ErrorCode& code) override {
    chunk_left_ = size;
    code = {};
  }
  size_t on_chunk_body_impl(uint64_t left, BeastView piece, ErrorCode& code) override {
    chunk_left_ = left - piece.size();
    return on_body_impl(piece, code);
  }
  void on_finish_impl(ErrorCode& code) override { code = {}; }

  size_t header_left_;  // of the limit
  bool in_body_ = false;
  uint64_t chunk_left_ = 0;  // bytes of the chunk whose size has been read
};

// "http://host/path?q" of a request through a proxy, or "/path?q".
void split_target(std::string_view target, Request& request) {
  if (size_t scheme = target.find("://"); scheme != std::string_view::npos && !target.starts_with('/')) {
    size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  target = target.substr(0, target.find('#'));
  size_t mark = target.find('?');
  request.path = target.substr(0, mark);
  request.query = mark == std::string_view::npos ? std::string_view() : target.substr(mark + 1);
}

}  // namespace

class RequestParser::Impl : public CollectingParser<true> {
 public:
  using CollectingParser::CollectingParser;
  Request request_;

 private:
  void on_request_impl(
      beast_http::verb, BeastView method, BeastView target, int version, ErrorCode& code) override {
    code = {};
    request_.method = view(method);
    http_1_0_ = version < 11;
    split_target(view(target), request_);
    bool whole_server = request_.path == "*" && request_.method == "OPTIONS";
    if (request_.path.starts_with('/') || whole_server) return;
    error_ = {400, "the request target must be a path"};
    code = refused();
  }
  void on_response_impl(int, BeastView, int, ErrorCode&) override {}

  void check_header() override {
    const std::string* coding = headers_.find("Transfer-Encoding");
    size_t hosts = headers_.count("Host");
    if (coding && headers_.find("Content-Length")) {
      error_ = {400, "Content-Length and Transfer-Encoding exclude each other"};
    } else if (coding && http_1_0_) {
      error_ = {400, "HTTP/1.0 has no Transfer-Encoding"};
    } else if (coding &&
               (headers_.count("Transfer-Encoding") > 1 || !equals_ignoring_case(*coding, "chunked"))) {
      error_ = {501, "the only transfer coding served is chunked"};
    } else if (const std::string* length = headers_.find("Content-Length");
               headers_.count("Content-Length") > 1 || (length && length->find(',') != std::string::npos)) {
      error_ = {400, "Content-Length is given twice"};
    } else if (hosts > 1 || (hosts == 0 && !http_1_0_)) {
      error_ = {400, "a request needs exactly one Host"};
    }
    request_.headers = std::move(headers_);
  }
  bool take_body(std::string_view piece) override {
    request_.body += piece;
    return true;
  }
};

RequestParser::RequestParser(ParserLimits limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;
size_t RequestParser::feed(std::string_view bytes) { return impl_->feed(bytes); }
const ParseError& RequestParser::error() const { return impl_->error_; }
bool RequestParser::header_done() const { return impl_->is_header_done(); }
bool RequestParser::done() const { return impl_->is_done(); }
bool RequestParser::http_1_0() const { return impl_->http_1_0_; }
bool RequestParser::keep_alive() const { return impl_->keep_alive(); }
Request& RequestParser::request() { return impl_->request_; }

class ResponseParser::Impl : public CollectingParser<false> {
 public:
  Impl(ParserLimits limits, bool head_request, OnBody on_body)
      : CollectingParser(limits), on_body_(std::move(on_body)) {
    if (head_request) skip(true);
  }

  Response response_;
  bool stopped_ = false;

 private:
  void on_request_impl(beast_http::verb, BeastView, BeastView, int, ErrorCode&) override {}
  void on_response_impl(int status, BeastView, int version, ErrorCode& code) override {
    code = {};
    response_.status = status;
    http_1_0_ = version < 11;
  }
  void check_header() override {
    const std::string* type = headers_.find("Content-Type");
    response_.content_type = type ? *type : "";
    response_.headers = std::move(headers_);
  }
  bool take_body(std::string_view piece) override {
    if (!stopped_) stopped_ = !on_body_(piece);
    return !stopped_;
  }

  OnBody on_body_;
};

ResponseParser::ResponseParser(ParserLimits limits, bool head_request, OnBody on_body)
    : impl_(std::make_unique<Impl>(limits, head_request, std::move(on_body))) {}
ResponseParser::~ResponseParser() = default;
size_t ResponseParser::feed(std::string_view bytes) { return impl_->feed(bytes); }
void ResponseParser::feed_eof() {
  ErrorCode code = make_error_code(beast_http::error::partial_message);
  if (impl_->got_some()) impl_->put_eof(code);
  if (code && impl_->error_.status == 0)
    impl_->error_ = {400, "the peer closed the connection in the middle of its response"};
}
const ParseError& ResponseParser::error() const { return impl_->error_; }
bool ResponseParser::header_done() const { return impl_->is_header_done(); }
bool ResponseParser::done() const { return impl_->is_done(); }
bool ResponseParser::stopped() const { return impl_->stopped_; }
bool ResponseParser::keep_alive() const { return impl_->is_done() && impl_->keep_alive(); }
Response& ResponseParser::response() { return impl_->response_; }

}  // namespace llm_dist::http
