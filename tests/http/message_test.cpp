// Plain data and text: headers, URLs' escapes, SSE. No socket.
#include "src/http/message.h"

#include <gtest/gtest.h>

#include <random>

#include "src/http/sse.h"
#include "src/http/url.h"

namespace llm_dist::http {
namespace {

TEST(Headers, NamesCompareWithoutCase) {
  Headers headers{{"Content-Type", "a"}, {"X-One", "1"}};
  ASSERT_NE(headers.find("content-TYPE"), nullptr);
  EXPECT_EQ(*headers.find("content-TYPE"), "a");
  EXPECT_EQ(headers.find("Content"), nullptr);
  headers.set("CONTENT-TYPE", "b");
  EXPECT_EQ(headers.count("Content-Type"), 1u);
  EXPECT_EQ(*headers.find("Content-Type"), "b");
}

TEST(Headers, TokensOfListFields) {
  Headers headers{{"Connection", "Upgrade , close"}};
  EXPECT_TRUE(headers.has_token("connection", "Close"));
  EXPECT_FALSE(headers.has_token("connection", "clo"));
}

TEST(PercentDecode, LeavesBrokenEscapes) {
  EXPECT_EQ(percent_decode("%2Fa%20b+c%zz%4"), "/a b+c%zz%4");
  EXPECT_EQ(percent_decode("a+b", true), "a b");
  EXPECT_EQ(percent_decode("%41"), "A");
}

TEST(Request, QueryParams) {
  Request request;
  request.query = "limit=20&after=a%26b&flag";
  EXPECT_EQ(request.query_param("limit"), "20");
  EXPECT_EQ(request.query_param("after"), "a&b");
  EXPECT_EQ(request.query_param("flag"), "");
  EXPECT_EQ(request.query_param("lim"), "");
}

TEST(SecureEqual, ComparesContentAndLength) {
  EXPECT_TRUE(secure_equal("secret", "secret"));
  EXPECT_FALSE(secure_equal("secret", "secreT"));
  EXPECT_FALSE(secure_equal("Secret", "secret"));
  EXPECT_FALSE(secure_equal("secret", "secret2"));
  EXPECT_TRUE(secure_equal("", ""));
}

TEST(Url, Parts) {
  auto url = parse_url("http://[::1]:8080/v1/models?x=1");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, 8080);
  EXPECT_EQ(url->authority, "[::1]:8080");
  EXPECT_EQ(url->target, "/v1/models?x=1");
  EXPECT_EQ(parse_url("https://host")->port, 443);
  EXPECT_EQ(parse_url("https://host")->target, "/");
  EXPECT_EQ(parse_url("http://host?q")->target, "/?q");
  EXPECT_EQ(parse_url("http+unix://%2Ftmp%2Fs/x")->uds_path, "/tmp/s");
  for (const char* bad :
       {"host:80/", "http://", "http://h:0/", "http://h:99999/", "http://h:8x/", "http://[::1/"})
    EXPECT_EQ(parse_url(bad).status().code(), StatusCode::kInvalidArgument) << bad;
}

using Events = std::vector<std::string>;

std::string describe(const SseEvent& event) { return event.event + '|' + event.data + '|' + event.id; }

Events parse_in_pieces(std::string_view stream, const std::vector<size_t>& cuts) {
  Events events;
  SseParser parser([&](const SseEvent& event) {
    events.push_back(describe(event));
    return true;
  });
  size_t begin = 0;
  for (size_t cut : cuts) {
    parser.feed(stream.substr(begin, cut - begin));
    begin = cut;
  }
  parser.feed(stream.substr(begin));
  return events;
}

constexpr std::string_view kStream =
    "\xEF\xBB\xBF: a comment\n"
    "data: one\r\n\r\n"
    "event: ping\rid: 7\rdata: a\rdata: b\r\r"
    "data:two  \n\n"
    ":\n\n"
    "event: without data\n\n"
    "data\n\n"
    "retry: 10\ndata: \xC3\xA4 : colon\r\nunknown: x\n\r\n"
    "data: never finished\n";

const Events kExpected = {
    "message|one|", "ping|a\nb|7", "message|two  |7", "message||7", "message|\xC3\xA4 : colon|7"};

TEST(SseParser, FollowsTheSpecification) { EXPECT_EQ(parse_in_pieces(kStream, {}), kExpected); }

TEST(SseParser, AnySplitGivesTheSameEvents) {
  std::vector<size_t> every_byte;
  for (size_t i = 1; i < kStream.size(); ++i) {
    EXPECT_EQ(parse_in_pieces(kStream, {i}), kExpected) << "split at " << i;
    every_byte.push_back(i);
  }
  EXPECT_EQ(parse_in_pieces(kStream, every_byte), kExpected);
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<size_t> cuts;
    for (size_t i = 1; i < kStream.size(); ++i)
      if (random() % 5 == 0) cuts.push_back(i);
    ASSERT_EQ(parse_in_pieces(kStream, cuts), kExpected) << "round " << round;
  }
}

TEST(SseParser, StopsWhenAsked) {
  int events = 0;
  SseParser parser([&](const SseEvent&) { return ++events < 2; });
  EXPECT_FALSE(parser.feed("data: 1\n\ndata: 2\n\ndata: 3\n\n"));
  EXPECT_FALSE(parser.feed("data: 4\n\n"));
  EXPECT_EQ(events, 2);
}

TEST(SseEvent, RoundTripsThroughTheParser) {
  EXPECT_EQ(sse_event("[DONE]"), "data: [DONE]\n\n");
  EXPECT_EQ(sse_event(""), "data: \n\n");
  for (std::string data : {"a\nb", "\n", "x\n\ny", " leading", "data: nested"})
    EXPECT_EQ(parse_in_pieces(sse_event(data), {}), Events{"message|" + data + "|"});
  EXPECT_EQ(parse_in_pieces(sse_event("a\r\nb\rc"), {}), Events{"message|a\nb\nc|"});
}

}  // namespace
}  // namespace llm_dist::http
