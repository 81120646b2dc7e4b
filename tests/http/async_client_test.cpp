// Many requests at once from one thread.
#include "src/http/async_client.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "src/http/sse.h"
#include "tests/http/no_descriptors.h"
#include "tests/http/raw_client.h"

namespace llm_dist::http {
namespace {

// Answers "/slow" after a while, "/later" when it is told to, "/never" not at all, the rest with its path.
class PathServer {
 public:
  PathServer() : server_(start([this](const Request& request, auto writer) { answer(request, writer); })) {}
  ~PathServer() {
    for (std::thread& thread : threads_) thread.join();
  }
  // "/later" is answered once this many have come.
  void answer_later_ones(size_t count) {
    std::lock_guard lock(mutex_);
    num_later_ = count;
    answer_if_all_came();
  }
  std::string url(const std::string& path) const { return server_->url() + path; }
  int num_peers() {
    std::lock_guard lock(mutex_);
    return static_cast<int>(peers_.size());
  }

 private:
  void answer(const Request& request, const std::shared_ptr<ResponseWriter>& writer) {
    std::lock_guard lock(mutex_);
    ++peers_[request.peer];
    if (request.path == "/later") {
      later_.push_back(writer);
      answer_if_all_came();
    } else if (request.path == "/never") {
      kept_.push_back(writer);
    } else if (request.path == "/slow") {
      threads_.emplace_back([writer] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        writer->send(text("slow"));
      });
    } else {
      writer->send(text(request.path));
    }
  }

  void answer_if_all_came() {
    if (later_.size() != num_later_) return;
    for (const auto& writer : later_) writer->send(text("later"));
  }

  std::mutex mutex_;
  std::map<std::string, int> peers_;
  std::vector<std::shared_ptr<ResponseWriter>> kept_, later_;
  size_t num_later_ = 0;
  std::vector<std::thread> threads_;
  std::unique_ptr<Server> server_;  // last: its thread uses the others
};

TEST(AsyncClient, SlowAnswersDoNotHoldUpEachOther) {
  PathServer server;
  AsyncClient client;
  std::vector<std::string> bodies;
  auto keep = [&](Result<Response> response) { bodies.push_back(response.ok() ? response->body : "?"); };
  for (int i = 0; i < 20; ++i) client.start({.url = server.url("/later")}, soon(), {}, keep);
  client.start({.url = server.url("/quick")}, soon(), {}, [&](const Result<Response>& response) {
    keep(response);
    server.answer_later_ones(20);  // only when all are there at once
  });
  EXPECT_TRUE(bodies.empty()) << "nothing happens outside run()";
  EXPECT_TRUE(client.run(soon()));
  ASSERT_EQ(bodies.size(), 21u);
  EXPECT_EQ(bodies.front(), "/quick");
  EXPECT_EQ(std::count(bodies.begin(), bodies.end(), "later"), 20);
}

TEST(AsyncClient, KeepsItsConnections) {
  PathServer server;
  AsyncClient client;
  int answered = 0;
  for (int i = 0; i < 5; ++i) {
    client.start({.url = server.url("/x")}, soon(), {}, [&](const Result<Response>& response) {
      answered += response.ok() && response->body == "/x" ? 1 : 0;
    });
    EXPECT_TRUE(client.run(soon()));
  }
  EXPECT_EQ(answered, 5);
  EXPECT_EQ(server.num_peers(), 1);
}

TEST(AsyncClient, StreamsThePiecesOf2xxOnly) {
  auto server = start([](const Request& request, const std::shared_ptr<ResponseWriter>& writer) {
    if (request.path != "/stream") return (void)writer->send(text("no", 503));
    writer->start_stream(200, sse_headers());
    writer->write(sse_event("a"));
    writer->write(sse_event("b"));
    writer->end();
  });
  AsyncClient client;
  std::string streamed, refused;
  int status = 0;
  auto append = [&](std::string_view piece) {
    streamed += piece;
    return true;
  };
  client.start(get(*server, "/stream"), soon(), append, [&](const Result<Response>& response) {
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(response->body, "");
  });
  client.start(get(*server, "/other"), soon(), append, [&](const Result<Response>& response) {
    ASSERT_TRUE(response.ok());
    status = response->status;
    refused = response->body;
  });
  EXPECT_TRUE(client.run(soon()));
  EXPECT_EQ(streamed, sse_event("a") + sse_event("b"));
  EXPECT_EQ(status, 503);
  EXPECT_EQ(refused, "no");
}

TEST(AsyncClient, EachRequestHasItsOwnDeadline) {
  PathServer server;
  AsyncClient client;
  std::map<std::string, StatusCode> codes;
  client.start({.url = server.url("/never")},
               Deadline::after_seconds(0.05),
               {},
               [&](const Result<Response>& response) { codes["never"] = response.status().code(); });
  client.start({.url = server.url("/slow")}, soon(), {}, [&](const Result<Response>& response) {
    codes["slow"] = response.status().code();
  });
  client.start({.url = "http://127.0.0.1:1/"}, soon(), {}, [&](const Result<Response>& response) {
    codes["refused"] = response.status().code();
  });
  client.start({.url = "ftp://x/"}, soon(), {}, [&](const Result<Response>& response) {
    codes["url"] = response.status().code();
  });
  EXPECT_TRUE(client.run(soon()));
  EXPECT_EQ(codes["never"], StatusCode::kDeadlineExceeded);
  EXPECT_EQ(codes["slow"], StatusCode::kOk);
  EXPECT_EQ(codes["refused"], StatusCode::kUnavailable);
  EXPECT_EQ(codes["url"], StatusCode::kInvalidArgument);
}

TEST(AsyncClient, CancelledRequestsSaySoAndTimersAreForgotten) {
  PathServer server;
  AsyncClient client;
  int done = 0;
  bool rang = false;
  for (int i = 0; i < 3; ++i) {
    client.start({.url = server.url("/never")}, soon(), {}, [&](const Result<Response>& response) {
      done += response.status().code() == StatusCode::kCancelled ? 1 : 0;
    });
  }
  client.call_at(Clock::now() + std::chrono::hours(1), [&] { rang = true; });
  EXPECT_FALSE(client.run(Deadline::after_seconds(0.05)));
  client.cancel_all();
  EXPECT_TRUE(client.run(soon()));
  EXPECT_EQ(done, 3);
  client.start({.url = server.url("/x")}, soon(), {}, [&](const auto&) { ++done; });
  EXPECT_TRUE(client.run(soon())) << "what the timer has left behind is run";
  EXPECT_EQ(done, 4);
  EXPECT_FALSE(rang);
}

TEST(AsyncClient, TimersAndRequestsStartOthers) {
  PathServer server;
  AsyncClient client;
  std::vector<std::string> order;
  TimePoint begin = Clock::now();
  double rang_after = 0;
  client.call_at(begin + std::chrono::milliseconds(60), [&] {
    rang_after = seconds_between(begin, Clock::now());
    order.emplace_back("timer");
    client.start({.url = server.url("/a")}, soon(), {}, [&](Result<Response> first) {
      order.push_back(first->body);
      client.start({.url = server.url("/b")}, soon(), {}, [&](Result<Response> second) {
        order.push_back(second->body);
      });
    });
  });
  EXPECT_TRUE(client.run(soon()));
  EXPECT_EQ(order, (std::vector<std::string>{"timer", "/a", "/b"}));
  EXPECT_GE(rang_after, 0.06);
}

TEST(AsyncClient, OneStepWaitsForWhateverComesFirst) {
  PathServer server;
  AsyncClient client;
  TimePoint begin = Clock::now();
  client.run_one(Deadline::after_seconds(0.05));
  EXPECT_GE(seconds_between(begin, Clock::now()), 0.05) << "nothing is open, and it waits all the same";
  client.wake();
  client.wake();
  client.run_one(soon());
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    client.wake();
  });
  client.run_one(soon());
  other.join();
  client.start({.url = server.url("/never")}, soon(), {}, [](const auto&) {});
  std::string body;
  client.start({.url = server.url("/x")}, soon(), {}, [&](Result<Response> got) { body = got->body; });
  while (body.empty()) client.run_one(soon());
  EXPECT_EQ(body, "/x");
  EXPECT_LT(seconds_between(begin, Clock::now()), 10);
}

TEST(AsyncClient, GoesAwayWithRequestsOpenAndWithoutTheirCallbacks) {
  PathServer server;
  bool called = false;
  {
    AsyncClient client;
    client.start({.url = server.url("/never")}, soon(), {}, [&](const auto&) { called = true; });
    EXPECT_FALSE(client.run(Deadline::after_seconds(0.05)));
    client.start({.url = server.url("/never")}, soon(), {}, [&](const auto&) { called = true; });
  }
  EXPECT_FALSE(called);
}

TEST(AsyncClient, HandsOnWhatACallbackThrows) {
  PathServer server;
  AsyncClient client;
  client.start(
      {.url = server.url("/x")},
      soon(),
      [](std::string_view) -> bool { throw std::runtime_error("of the test"); },
      [](const auto&) { FAIL() << "there is no outcome"; });
  EXPECT_THROW(client.run(soon()), std::runtime_error);
  EXPECT_TRUE(client.run(soon()));
}

// Nothing is known of the server then: it is not called unavailable.
TEST(AsyncClient, WhatThisProcessLacksIsToldApart) {
  PathServer server;
  const std::string url = server.url("/now");
  StatusCode blocking = StatusCode::kOk;
  StatusCode async = StatusCode::kOk;
  Deadline deadline = Deadline::after_seconds(30);
  AsyncClient client;
  {
    NoDescriptors none;
    blocking = request({.url = url}, deadline).status().code();
    client.start({.url = url}, deadline, {}, [&](Result<Response> got) { async = got.status().code(); });
    EXPECT_TRUE(client.run(deadline));
  }
  EXPECT_EQ(blocking, StatusCode::kResourceExhausted);
  EXPECT_EQ(async, StatusCode::kResourceExhausted);
  client.start({.url = url}, deadline, {}, [&](Result<Response> got) { async = got.status().code(); });
  EXPECT_TRUE(client.run(deadline));
  EXPECT_EQ(async, StatusCode::kOk) << "once there are some it goes on";
}

}  // namespace
}  // namespace llm_dist::http
