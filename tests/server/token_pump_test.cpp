// A generation that throws, at each point of its life, and others beside it.
#include <future>

#include "src/base/log.h"
#include "tests/server/server_fixture.h"

namespace llm_dist::server {
namespace {

constexpr const char* kTextPath = "/v1/completions";
constexpr int kAlways = 1000;

class TokenPumpTest : public ServerFixture {
 protected:
  void SetUp() override {}

  // With a stream in progress, of a client that expects all of it.
  void serve(ServerOptions options) {
    start(std::move(options));
    engine->set_scripts({script("say STOP and more")});
    engine->pause();
    other_ = std::async(std::launch::async, [&] { return stream(kTextPath, completion("other")); });
    ASSERT_TRUE(eventually([&] { return engine->num_running() == 1; }));
  }
  // The stream beside it stands half way when the answer comes.
  template <typename Ask>
  auto ask_beside(Ask ask) {
    auto asked = std::async(std::launch::async, ask);
    EXPECT_TRUE(eventually([&] { return engine->num_running() == 2; }));
    engine->pause_after(10);
    engine->resume();
    return asked.get();
  }
  void expect_other_whole() {
    engine->resume();
    const Stream streamed = other_.get();
    EXPECT_TRUE(streamed.done);
    EXPECT_EQ(streamed.text(), "say STOP and more");
  }
  // Ends by a stop string, after which the engine is told to cancel.
  static Json stopped() {
    Json body = completion("x");
    body["stop"] = "STOP";
    return body;
  }
  static void expect_internal_error(const http::Response& response) {
    EXPECT_EQ(response.status, 500);
    EXPECT_EQ(Json::parse(response.body).at("error").at("code"), "internal_error");
  }

  std::future<Stream> other_;
};

TEST_F(TokenPumpTest, OneThatThrowsWhenItBeginsGivesBackWhatItSubmitted) {
  serve({});
  Json body = completion("x");
  body["n"] = 3;
  engine->throw_after_submissions(2);
  testing::internal::CaptureStderr();
  expect_internal_error(post(kTextPath, body));
  flush_log();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("the request could not be handled: std::bad_alloc"), std::string::npos) << log;
  EXPECT_EQ(engine->num_cancelled(), 2u);
  EXPECT_EQ(engine->num_running(), 1u);
  expect_other_whole();
}

TEST_F(TokenPumpTest, OneThatThrowsAtATokenIsAnError) {
  serve({});
  engine->throw_from_cancels(1);
  expect_internal_error(ask_beside([&] { return post(kTextPath, stopped()); }));
  expect_other_whole();
}

TEST_F(TokenPumpTest, OneThatThrowsInAStreamEndsItWithAnEvent) {
  serve({});
  engine->throw_from_cancels(1);
  const Stream streamed = ask_beside([&] { return stream(kTextPath, stopped()); });
  EXPECT_FALSE(streamed.done);
  ASSERT_FALSE(streamed.chunks.empty());
  EXPECT_EQ(streamed.chunks.back().at("error").at("code"), "internal_error");
  expect_other_whole();
}

TEST_F(TokenPumpTest, OneThatThrowsWhenItFailsIsAnErrorToo) {
  serve({});
  engine->throw_from_cancels(kAlways);
  EXPECT_EQ(ask_beside([&] { return post(kTextPath, stopped()); }).status, 500);
  expect_other_whole();
  EXPECT_TRUE(server->drain(soon()).ok()) << "it is no longer in progress";
}

TEST_F(TokenPumpTest, OneThatThrowsPastItsDeadlineIsAnError) {
  serve({.request_timeout_seconds = 0.1});
  engine->throw_from_cancels(kAlways);
  expect_internal_error(post(kTextPath, completion("x")));
  post_ok("/tokenize", {{"prompt", "x"}});
  other_.wait();
}

TEST_F(TokenPumpTest, AFailureReachesEachAlsoWhereTheyThrow) {
  serve({});
  auto asked = std::async(std::launch::async, [&] { return post(kTextPath, completion("x")).status; });
  ASSERT_TRUE(eventually([&] { return engine->num_running() == 2; }));
  engine->throw_from_cancels(kAlways);
  server->fail(unavailable("a rank is gone"));
  EXPECT_EQ(asked.get(), 500);
  EXPECT_EQ(other_.get().status, 500);
}

}  // namespace
}  // namespace llm_dist::server
