// Streams written by other threads, and clients that go away or do not read.
#include <mutex>
#include <set>
#include <thread>

#include "src/http/sse.h"
#include "tests/http/raw_client.h"

namespace llm_dist::http {
namespace {

// Keeps the writers that the handler gets, for the test's threads.
class Inbox {
 public:
  Handler handler() {
    return [this](const Request&, std::shared_ptr<ResponseWriter> writer) {
      std::lock_guard lock(mutex_);
      writers_.push_back(std::move(writer));
    };
  }
  std::shared_ptr<ResponseWriter> take() {
    std::shared_ptr<ResponseWriter> writer;
    EXPECT_TRUE(eventually([&] {
      std::lock_guard lock(mutex_);
      if (writers_.empty()) return false;
      writer = std::move(writers_.back());
      writers_.pop_back();
      return true;
    }));
    return writer;
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<ResponseWriter>> writers_;
};

constexpr std::string_view kGet = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

TEST(Stream, EventsFromAnotherThreadArriveInOrderAndTheConnectionIsKept) {
  Inbox inbox;
  auto server = start(inbox.handler());
  Client client;
  for (int round = 0; round < 2; ++round) {
    std::thread producer([&] {
      auto writer = inbox.take();
      writer->start_stream(200, sse_headers());
      for (int i = 0; i < 500; ++i) writer->write(sse_event(std::to_string(i)));
      writer->write(sse_event("[DONE]"));
      writer->end();
    });
    std::vector<std::string> events;
    auto response = client.stream_events(get(*server, "/"), soon(), [&](const SseEvent& event) {
      events.push_back(event.data);
      return true;
    });
    producer.join();
    ASSERT_TRUE(response.ok()) << response.status().to_string();
    EXPECT_EQ(response->content_type.substr(0, 17), "text/event-stream");
    ASSERT_EQ(events.size(), 501u);
    for (int i = 0; i < 500; ++i) ASSERT_EQ(events[static_cast<size_t>(i)], std::to_string(i));
    EXPECT_EQ(events.back(), "[DONE]");
  }
}

TEST(Stream, EachEventLeavesAtOnce) {
  Inbox inbox;
  auto server = start(inbox.handler());
  RawClient client(server->port());
  client.send(kGet);
  auto writer = inbox.take();
  writer->start_stream(200, sse_headers());
  EXPECT_NE(client.read_until("\r\n\r\n").find("Transfer-Encoding: chunked"), std::string::npos);
  writer->write(sse_event("one"));
  EXPECT_EQ(client.read_until("\n\n\r\n"), "b\r\ndata: one\n\n\r\n");
  writer->write("");
  writer->write(sse_event("two"));
  EXPECT_EQ(client.read_until("\n\n\r\n"), "b\r\ndata: two\n\n\r\n")
      << "an empty write must not end the body";
  writer->end();
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
}

TEST(Stream, Http10GetsAPlainBodyThatEndsWithTheConnection) {
  Inbox inbox;
  auto server = start(inbox.handler());
  RawClient client(server->port());
  client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  auto writer = inbox.take();
  writer->start_stream(200, {});
  writer->write("abc");
  writer->end();
  std::string all = client.read_to_end();
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(all.find("chunked"), std::string::npos);
  EXPECT_TRUE(all.ends_with("\r\n\r\nabc")) << all;
}

enum class Leaves { kClosing, kResetting };

class Disconnect : public testing::TestWithParam<std::tuple<Leaves, bool>> {};

TEST_P(Disconnect, IsNoticedOnce) {
  auto [how, streaming] = GetParam();
  Inbox inbox;
  auto server = start(inbox.handler());
  auto client = std::make_unique<RawClient>(server->port());
  client->send(kGet);
  auto writer = inbox.take();
  std::atomic<int> calls = 0;
  writer->on_disconnect([&] { ++calls; });
  if (streaming) {
    writer->start_stream(200, sse_headers());
    writer->write(sse_event("x"));
    client->read_until("data: x");
  }
  EXPECT_FALSE(writer->disconnected());
  how == Leaves::kResetting ? client->reset() : client.reset();
  EXPECT_TRUE(eventually([&] { return calls == 1; })) << "without any write";
  EXPECT_TRUE(writer->disconnected());
  EXPECT_FALSE(writer->write("y"));
  EXPECT_FALSE(writer->send(text("z")));
  bool late = false;
  writer->on_disconnect([&] { late = true; });
  EXPECT_TRUE(late) << "registered after the fact";
  EXPECT_EQ(calls, 1);
}

INSTANTIATE_TEST_SUITE_P(All,
                         Disconnect,
                         testing::Combine(testing::Values(Leaves::kClosing, Leaves::kResetting),
                                          testing::Bool()));

TEST(Stream, NoDisconnectAfterTheEnd) {
  Inbox inbox;
  auto server = start(inbox.handler());
  auto client = std::make_unique<RawClient>(server->port());
  client->send(kGet);
  auto writer = inbox.take();
  std::atomic<int> calls = 0;
  writer->on_disconnect([&] { ++calls; });
  writer->send(text("bye"));
  client->read_until("bye");
  client.reset();
  EXPECT_TRUE(server->shutdown(soon()).ok());
  EXPECT_EQ(calls, 0);
}

TEST(Stream, ACallbackMayBeWhatOwnsTheWriter) {
  auto server = start([](const Request&, std::shared_ptr<ResponseWriter> writer) {
    ResponseWriter* raw = writer.get();
    writer->on_disconnect([owner = std::move(writer)] { EXPECT_TRUE(owner->disconnected()); });
    raw->start_stream(200, {});
    raw->end();  // destroys the callback, and with it the writer
  });
  EXPECT_EQ(request(get(*server, "/"), soon())->status, 200);
}

TEST(Stream, AHalfClosedClientStillGetsAnAnswerThatIsReady) {
  auto server =
      start([](const Request& r, const std::shared_ptr<ResponseWriter>& w) { w->send(text(r.path)); });
  RawClient client(server->port());
  client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n");
  client.shutdown_write();
  std::string all = client.read_to_end();
  EXPECT_NE(all.find("/a"), std::string::npos);
  EXPECT_NE(all.find("/b"), std::string::npos);
}

TEST(Stream, ASlowReaderIsCutOffAtTheCap) {
  Inbox inbox;
  ServerOptions options;
  options.max_write_queue_bytes = 256 << 10;
  auto server = start(inbox.handler(), options);
  RawClient client(server->port(), 4096);
  client.send(kGet);
  auto writer = inbox.take();
  std::atomic<int> calls = 0;
  writer->on_disconnect([&] { ++calls; });
  writer->start_stream(200, sse_headers());
  const std::string event = sse_event(std::string(1000, 'x'));
  size_t written = 0;
  // The kernel's buffers take some megabytes before the queue grows.
  while (written < (size_t{64} << 20) && writer->write(event)) written += event.size();
  EXPECT_LT(written, size_t{64} << 20);
  EXPECT_TRUE(writer->disconnected());
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  EXPECT_FALSE(writer->end());
}

TEST(Stream, WhatIsWrittenAtOnceCutsOffNobody) {
  Inbox inbox;
  ServerOptions options;
  options.max_write_queue_bytes = 64 << 10;
  auto server = start(inbox.handler(), options);
  RawClient client(server->port(), 4096);
  client.send(kGet);
  auto writer = inbox.take();
  writer->start_stream(200, sse_headers());
  const std::string large(8 << 20, 'x');  // more than the kernel's buffers take
  EXPECT_TRUE(writer->write(large));
  EXPECT_TRUE(writer->write("little"));
  EXPECT_TRUE(writer->write(large)) << "another one right behind it";
  EXPECT_TRUE(writer->end());
  const std::string all = client.read_until("0\r\n\r\n");
  EXPECT_GT(all.size(), 2 * large.size());
  EXPECT_TRUE(all.ends_with("0\r\n\r\n"));
}

TEST(Stream, LargeWritesAddUpAllTheSame) {
  Inbox inbox;
  auto server = start(inbox.handler());
  RawClient client(server->port(), 4096);
  client.send(kGet);
  auto writer = inbox.take();
  writer->start_stream(200, sse_headers());
  const std::string large(16 << 20, 'x');
  int written = 0;
  while (written < 10 && writer->write(large)) ++written;
  EXPECT_LT(written, 4);
  EXPECT_TRUE(writer->disconnected());
}

TEST(Stream, AnAbandonedStreamIsTruncatedNotEnded) {
  Inbox inbox;
  auto server = start(inbox.handler());
  std::thread producer([&] {
    auto writer = inbox.take();
    writer->start_stream(200, sse_headers());
    writer->write(sse_event("half"));
  });
  auto response = Client().stream(get(*server, "/"), soon(), [](std::string_view) { return true; });
  producer.join();
  EXPECT_EQ(response.status().code(), StatusCode::kUnavailable)
      << "the client must see that the body is not whole";
}

TEST(Stream, TheClientStopsAndTheServerNotices) {
  Inbox inbox;
  auto server = start(inbox.handler());
  std::atomic<bool> noticed = false;
  std::thread producer([&] {
    auto writer = inbox.take();
    writer->start_stream(200, sse_headers());
    noticed = eventually([&] {
      writer->write(sse_event("again"));
      return writer->disconnected();
    });
  });
  int events = 0;
  Client client;
  auto response =
      client.stream_events(get(*server, "/"), soon(), [&](const SseEvent&) { return ++events < 3; });
  EXPECT_TRUE(response.ok()) << response.status().to_string();
  EXPECT_EQ(events, 3);
  producer.join();
  EXPECT_TRUE(noticed);
}

TEST(Stream, AnAbortedRequestEndsAtOnce) {
  std::mutex mutex;
  std::vector<std::shared_ptr<ResponseWriter>> writers;
  std::atomic<int> asked = 0;
  auto server = start([&](const Request& request, std::shared_ptr<ResponseWriter> writer) {
    if (request.path == "/quick") return void(writer->send(text("ok")));
    std::lock_guard lock(mutex);
    writers.push_back(std::move(writer));
    ++asked;
  });
  for (bool kept : {false, true}) {
    Client client;
    if (kept) {
      ASSERT_EQ(client.request(get(*server, "/quick"), soon())->status, 200);
    }
    int before = asked;
    std::jthread other([&] {
      while (asked == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      client.abort();
    });
    EXPECT_EQ(client.request(get(*server, "/never"), soon()).status().code(), StatusCode::kCancelled)
        << "not at its deadline";
    EXPECT_EQ(asked, before + 1) << "not sent a second time";
    other.join();
    EXPECT_EQ(client.request(get(*server, "/quick"), soon()).status().code(), StatusCode::kCancelled);
  }
}

TEST(Stream, AnErrorStatusIsAResponseNotData) {
  auto server =
      start([](const Request&, const std::shared_ptr<ResponseWriter>& w) { w->send(text("no", 429)); });
  bool called = false;
  auto response = Client().stream(get(*server, "/"), soon(), [&](std::string_view) { return called = true; });
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 429);
  EXPECT_EQ(response->body, "no");
  EXPECT_FALSE(called);
}

TEST(Stream, AHundredAtOnce) {
  constexpr int kStreams = 100, kEvents = 20;
  Inbox inbox;
  ServerOptions options;
  options.num_io_threads = 2;
  auto server = start(inbox.handler(), options);
  std::atomic<int> whole = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i)
    clients.emplace_back([&] {
      int events = 0;
      auto response = Client().stream_events(get(*server, "/"), soon(), [&](const SseEvent& event) {
        return event.data == std::to_string(events++);
      });
      if (response.ok() && events == kEvents) ++whole;
    });
  std::vector<std::shared_ptr<ResponseWriter>> writers;
  for (int i = 0; i < kStreams; ++i) {
    writers.push_back(inbox.take());
    writers.back()->start_stream(200, sse_headers());
  }
  for (int event = 0; event < kEvents; ++event)
    for (auto& writer : writers) EXPECT_TRUE(writer->write(sse_event(std::to_string(event))));
  for (auto& writer : writers) EXPECT_TRUE(writer->end());
  for (auto& client : clients) client.join();
  EXPECT_EQ(whole, kStreams);
}

}  // namespace
}  // namespace llm_dist::http
