// Errors in the OpenAI API's words, and who may ask.
#include "src/http/api_error.h"

#include <gtest/gtest.h>

#include "src/http/foreign_page.h"
#include "src/http/key_check.h"

namespace llm_dist::http {
namespace {

TEST(ApiError, HasTheShapeOfOpenAIs) {
  EXPECT_EQ(error_json({.message = "no"}),
            R"({"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}})");
  EXPECT_EQ(error_json({.status = 500, .message = "no", .param = "p", .code = "c"}),
            R"({"error":{"message":"no","type":"server_error","param":"p","code":"c"}})");
  EXPECT_NE(error_json({.message = "a byte \xff of no text"}).find("\xEF\xBF\xBD"), std::string::npos);
}

TEST(ApiError, HeadersTellWhatToDo) {
  Response busy = error_response({.status = 503, .message = "busy", .retry_after_s = 7});
  EXPECT_EQ(*busy.headers.find("Retry-After"), "7");
  EXPECT_EQ(*error_response({.status = 401}).headers.find("WWW-Authenticate"), "Bearer");
  EXPECT_NE(render_http_error(404, "where?").body.find("unknown_url"), std::string::npos);
  EXPECT_EQ(*render_http_error(503, "full").headers.find("Retry-After"), "1");
}

bool allows(const KeyCheck& check, const std::string& authorization) {
  Request request;
  if (!authorization.empty()) request.headers.add("Authorization", authorization);
  return check.allows(request);
}

TEST(KeyCheck, AsksForOneOfTheKeys) {
  EXPECT_TRUE(allows(KeyCheck({}), ""));
  KeyCheck check({"alpha", "beta"});
  EXPECT_TRUE(allows(check, "Bearer alpha"));
  EXPECT_TRUE(allows(check, "bearer beta"));
  for (const char* wrong :
       {"", "alpha", "Bearer ", "Bearer alph", "Bearer alphaa", "Bearer  alpha", "Basic alpha"})
    EXPECT_FALSE(allows(check, wrong)) << wrong;
}

int status_of(const Headers& headers, const std::string& host) {
  std::optional<ApiError> error = foreign_page({.method = "POST", .path = "/", .headers = headers}, host);
  return error ? error->status : 200;
}

TEST(ForeignPage, IsKnownByItsOrigin) {
  for (const char* host : {"127.0.0.1", "0.0.0.0", ""}) {
    auto from = [&](const char* origin) {
      return status_of({{"Host", "localhost:8000"}, {"Origin", origin}}, host);
    };
    for (const char* own : {"http://localhost:8000", "https://localhost:8000", "http://LOCALHOST:8000"})
      EXPECT_EQ(from(own), 200) << own;
    for (const char* foreign : {"http://evil.example",
                                "http://localhost",
                                "http://localhost:3000",
                                "http://localhost:8000.evil.example",
                                "localhost:8000",
                                "null",
                                ""})
      EXPECT_EQ(from(foreign), 403) << foreign;
    EXPECT_EQ(status_of({{"Host", "localhost:8000"}}, host), 200);
    EXPECT_EQ(status_of({{"Origin", "http://localhost:8000"}}, host), 403);
  }
}

TEST(ForeignPage, IsKnownByAHostThatIsNotThisMachine) {
  auto at = [](const char* name, const char* host) { return status_of({{"Host", name}}, host); };
  for (const char* own : {"127.0.0.1", "127.0.0.1:8000", "127.9.9.9", "localhost:1", "[::1]", "[::1]:8000"})
    EXPECT_EQ(at(own, "127.0.0.1"), 200) << own;
  for (const char* foreign : {"evil.example",
                              "evil.example:8000",
                              "127.evil.example",
                              "localhost.evil.example:8000",
                              "10.0.0.1:8000",
                              "[::2]:8000",
                              "[::1",
                              "",
                              ":8000"}) {
    EXPECT_EQ(at(foreign, "127.0.0.1"), 403) << foreign;
    EXPECT_EQ(at(foreign, "0.0.0.0"), 200) << foreign << ", by whatever name others find it";
    EXPECT_EQ(at(foreign, ""), 200) << foreign << ", at a Unix socket";
  }
  EXPECT_EQ(status_of({}, "127.0.0.1"), 200) << "no browser leaves it out";
}

TEST(KeyCheck, KnowsWhatOnlyThisMachineReaches) {
  for (const char* inside : {"localhost", "LocalHost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"})
    EXPECT_TRUE(is_loopback(inside)) << inside;
  for (const char* outside :
       {"", "0.0.0.0", "::", "[::]", "10.0.0.1", "localhost.example", "127.example.org"})
    EXPECT_FALSE(is_loopback(outside)) << outside;
}

}  // namespace
}  // namespace llm_dist::http
