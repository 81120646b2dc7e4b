// Errors in the OpenAI API's words, and who may ask.
#include "src/http/api_error.h"

#include <gtest/gtest.h>

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

TEST(KeyCheck, KnowsWhatOnlyThisMachineReaches) {
  for (const char* inside : {"localhost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"})
    EXPECT_TRUE(is_loopback(inside)) << inside;
  for (const char* outside : {"", "0.0.0.0", "::", "[::]", "10.0.0.1", "localhost.example"})
    EXPECT_FALSE(is_loopback(outside)) << outside;
}

}  // namespace
}  // namespace llm_dist::http
