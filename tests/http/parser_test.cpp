// What the request parser takes and refuses, split anywhere.
#include <gtest/gtest.h>

#include "src/http/message_parser.h"

namespace llm_dist::http {
namespace {

using namespace std::string_literals;

constexpr ParserLimits kLimits{.max_header_bytes = 1024, .max_body_bytes = 100};

// Feeds the bytes cut at `split`, as a connection does; the status of the refusal, 0 if whole, -1 if it wants
// more.
int feed_all(RequestParser& parser, std::string_view bytes, size_t split) {
  std::string inbound;
  for (std::string_view piece : {bytes.substr(0, split), bytes.substr(split)}) {
    inbound += piece;
    while (!inbound.empty() && !parser.done()) {
      size_t taken = parser.feed(inbound);
      if (parser.error().status != 0) return parser.error().status;
      inbound.erase(0, taken);
      if (taken == 0) break;
    }
  }
  return parser.done() ? 0 : -1;
}

int outcome(const std::string& bytes, size_t split = std::string::npos) {
  RequestParser parser(kLimits);
  return feed_all(parser, bytes, std::min(split, bytes.size()));
}

TEST(RequestParser, EverySplitGivesTheSameRequest) {
  const std::string bytes =
      "POST /a%20b/c?x=1&y HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nX-A:  v \r\n\r\n"
      "5;ext=1\r\nhello\r\nA\r\n, world...\r\n0\r\nTrailer: t\r\n\r\n";
  for (size_t split = 0; split <= bytes.size(); ++split) {
    RequestParser parser(kLimits);
    ASSERT_EQ(feed_all(parser, bytes, split), 0) << "split at " << split;
    const Request& request = parser.request();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/a%20b/c");
    EXPECT_EQ(request.query, "x=1&y");
    EXPECT_EQ(*request.headers.find("x-a"), "v");
    EXPECT_EQ(request.headers.find("Trailer"), nullptr);
    EXPECT_EQ(request.body, "hello, world...");
  }
}

TEST(RequestParser, LeavesTheNextRequestAlone) {
  const std::string first = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
  RequestParser parser(kLimits);
  size_t taken = 0;
  const std::string both = first + "GET / HTTP/1.1\r\n";
  while (!parser.done()) taken += parser.feed(std::string_view(both).substr(taken));
  EXPECT_EQ(taken, first.size());
  EXPECT_EQ(parser.request().body, "abc");
}

TEST(RequestParser, TargetForms) {
  RequestParser absolute(kLimits);
  EXPECT_EQ(feed_all(absolute, "GET http://h:80/v1?q HTTP/1.1\r\nHost: h\r\n\r\n", 3), 0);
  EXPECT_EQ(absolute.request().path, "/v1");
  EXPECT_EQ(absolute.request().query, "q");
  EXPECT_EQ(outcome("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
  EXPECT_EQ(outcome("GET * HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
  EXPECT_EQ(outcome("GET models HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
}

TEST(RequestParser, RefusesWhatServersReadDifferently) {
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\n";
  EXPECT_EQ(outcome(post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(outcome(post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(outcome(post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"), 400);
  EXPECT_EQ(outcome(post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 400);
  EXPECT_EQ(outcome(post + "Content-Length: +5\r\n\r\nhello"), 400);
  EXPECT_EQ(outcome(post + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(outcome(post + "Transfer-Encoding: gzip\r\n\r\n"), 501);
  EXPECT_EQ(outcome(post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501);
  EXPECT_EQ(outcome(post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(outcome("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(outcome(post + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"), 400);
  EXPECT_EQ(outcome(post + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n"), 400);
}

TEST(RequestParser, RefusesMalformedHeads) {
  EXPECT_EQ(outcome("GET / HTTP/1.1\r\n\r\n"), 400) << "no Host";
  EXPECT_EQ(outcome("GET / HTTP/1.0\r\n\r\n"), 0) << "HTTP/1.0 needs none";
  EXPECT_EQ(outcome("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
  EXPECT_EQ(outcome("GET / HTTP/2.0\r\nHost: h\r\n\r\n"), 400);
  EXPECT_EQ(outcome("GET  / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
  EXPECT_EQ(outcome("GET / HTTP/1.1\r\nBad Header: x\r\nHost: h\r\n\r\n"), 400);
  EXPECT_EQ(outcome("GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n"s), 400);
  EXPECT_EQ(outcome("\x16\x03\x01\x02\x01\x01\xfc\x03\x03\r\n\r\n"), 400) << "TLS to a plain port";
}

TEST(RequestParser, Limits) {
  EXPECT_EQ(outcome("GET /" + std::string(2000, 'a') + " HTTP/1.1\r\nHost: h\r\n\r\n"), 431);
  EXPECT_EQ(outcome("GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(2000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(outcome("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n"), 413);
  std::string chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 3; ++i) chunked += "32\r\n" + std::string(50, 'x') + "\r\n";
  EXPECT_EQ(outcome(chunked), 413);
}

// What a chunk holds is handed on as it comes, also where it looks like the end of a body.
TEST(ResponseParser, PiecesOfChunksDoNotWait) {
  std::string body;
  ResponseParser parser({1024, 1000}, false, [&](std::string_view piece) {
    body += piece;
    return true;
  });
  std::string_view bytes = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nabcde";
  EXPECT_EQ(parser.feed(bytes), bytes.size());
  EXPECT_EQ(parser.feed("0\r\n"), 3u);
  EXPECT_EQ(body, "abcde0\r\n");
}

// However long the packets are: a header of just the limit is taken, one more byte is not.
TEST(RequestParser, TheHeaderLimitIsThatOfItsBytes) {
  const std::string head = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
  const std::string filler(kLimits.max_header_bytes - head.size() - 4, 'a');
  for (size_t split = 0; split <= kLimits.max_header_bytes; split += 93) {
    EXPECT_EQ(outcome(head + filler + "\r\n\r\n", split), 0) << "split at " << split;
    EXPECT_EQ(outcome(head + filler + "a\r\n\r\n", split), 431) << "split at " << split;
    EXPECT_EQ(outcome(head + filler + "a\r\n\r\nGET", split), 431) << "split at " << split;
  }
}

// Where a chunk's line begins with 0 and fewer than five bytes of the end have come.
TEST(RequestParser, EverySplitOfALastChunkGivesTheSame) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string end : {"0\r\n\r\n",
                                "00\r\n\r\n",
                                "0;a\r\n\r\n",
                                "0 \r\n\r\n",
                                "0,\r\n\r\n",
                                "1\r\n0\r\n0\r\n\r\n",
                                "01\r\nx\r\n0\r\n\r\n"}) {
    int whole = outcome(head + end);
    for (size_t split = 0; split < end.size(); ++split)
      EXPECT_EQ(outcome(head + end, head.size() + split), whole) << end << " split at " << split;
  }
}

TEST(RequestParser, KeepAlive) {
  auto keep = [](const std::string& bytes) {
    RequestParser parser(kLimits);
    EXPECT_EQ(feed_all(parser, bytes, bytes.size()), 0);
    return parser.keep_alive();
  };
  EXPECT_TRUE(keep("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_FALSE(keep("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
  EXPECT_FALSE(keep("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keep("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

TEST(ResponseParser, BodyUntilClose) {
  std::string body;
  ResponseParser parser({1024, 1000}, false, [&](std::string_view piece) {
    body += piece;
    return true;
  });
  const std::string bytes = "HTTP/1.1 200 OK\r\n\r\nabc";
  for (size_t taken = 0; taken < bytes.size();) taken += parser.feed(std::string_view(bytes).substr(taken));
  EXPECT_FALSE(parser.done());
  parser.feed_eof();
  EXPECT_TRUE(parser.done());
  EXPECT_EQ(body, "abc");
}

TEST(ResponseParser, TruncatedBodyIsAnError) {
  ResponseParser parser({1024, 1000}, false, [](std::string_view) { return true; });
  const std::string bytes = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc";
  for (size_t taken = 0; taken < bytes.size();) taken += parser.feed(std::string_view(bytes).substr(taken));
  parser.feed_eof();
  EXPECT_FALSE(parser.done());
  EXPECT_NE(parser.error().status, 0);
}

}  // namespace
}  // namespace llm_dist::http
