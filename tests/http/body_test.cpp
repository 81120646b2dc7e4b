// Bodies that come and go in pieces: sources of responses, sinks of requests, and what is refused before its
// body.
#include "src/http/body.h"

#include <mutex>
#include <thread>

#include "tests/http/raw_client.h"

namespace llm_dist::http {
namespace {

constexpr size_t kPieceBytes = 256 << 10;

// Byte `at` of what every source here holds.
char byte_at(uint64_t at) { return static_cast<char>('a' + at * 7 % 23 + at / kPieceBytes % 3); }

std::string bytes_of(uint64_t begin, uint64_t count) {
  std::string text(count, '\0');
  for (uint64_t i = 0; i < count; ++i) text[i] = byte_at(begin + i);
  return text;
}

class TestSource : public BodySource {
 public:
  explicit TestSource(uint64_t bytes, uint64_t fails_at = UINT64_MAX) : bytes_(bytes), fails_at_(fails_at) {}
  uint64_t bytes() const override { return bytes_; }
  Status read(std::span<char> piece) override {
    largest_piece = std::max(largest_piece.load(), piece.size());
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (num_read + piece.size() > fails_at_) return data_loss("the disk is gone");
    for (char& each : piece) each = byte_at(num_read++);
    return ok_status();
  }
  std::atomic<uint64_t> num_read = 0;
  std::atomic<size_t> largest_piece = 0;
  std::atomic<bool> held = false;

 private:
  const uint64_t bytes_;
  const uint64_t fails_at_;
};

Handler answer_with(std::shared_ptr<TestSource> source) {
  return [source](const Request& request, const std::shared_ptr<ResponseWriter>& writer) {
    if (request.path != "/") return void(writer->send(text("other")));
    auto own = source ? source : std::make_shared<TestSource>(1'000'003);
    writer->send({.content_type = "text/plain", .source = own});
  };
}

TEST(BodySource, IsSentWholeAndTheConnectionGoesOn) {
  auto server = start(answer_with(nullptr));
  RawClient client(server->port());
  client.send(
      "GET / HTTP/1.1\r\nHost: h\r\n\r\nHEAD / HTTP/1.1\r\nHost: h\r\n\r\nGET /x HTTP/1.1\r\nHost: "
      "h\r\n\r\n");
  std::string all = client.read_until("other");
  size_t body = all.find("\r\n\r\n") + 4;
  EXPECT_NE(all.substr(0, body).find("Content-Length: 1000003\r\n"), std::string::npos);
  EXPECT_TRUE(all.substr(body, 1'000'003) == bytes_of(0, 1'000'003));
  std::string rest = all.substr(body + 1'000'003);
  EXPECT_EQ(rest.find("HTTP/1.1 200 OK\r\n"), 0u);
  EXPECT_NE(rest.find("Content-Length: 1000003\r\n"), std::string::npos) << rest;
  size_t head_end = rest.find("\r\n\r\n") + 4;
  EXPECT_EQ(rest.find("HTTP/1.1 200 OK\r\n", head_end), head_end) << "HEAD has no body";
}

TEST(BodySource, AnEmptyOneAndAClientThatClosedItsSide) {
  auto server = start(answer_with(std::make_shared<TestSource>(0)));
  auto empty = request(get(*server, "/"), soon());
  ASSERT_TRUE(empty.ok()) << empty.status().to_string();
  EXPECT_EQ(*empty->headers.find("Content-Length"), "0");
  auto other = start(answer_with(std::make_shared<TestSource>(20 << 20)));
  RawClient client(other->port(), 4096);
  client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  client.shutdown_write();
  std::string all = client.read_to_end();
  EXPECT_EQ(all.size() - all.find("\r\n\r\n") - 4, size_t{20} << 20);
}

TEST(BodySource, IsReadNoFasterThanTheClientTakesIt) {
  auto source = std::make_shared<TestSource>(uint64_t{1} << 30);
  ServerOptions options;
  options.write_timeout = std::chrono::milliseconds(300);
  auto server = start(answer_with(source), options);
  RawClient client(server->port(), 4096);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  auto is_over = [&] { return source->num_read > 0 && source.use_count() == 2; };
  ASSERT_TRUE(eventually(is_over)) << "who never reads is cut off";
  EXPECT_LT(source->num_read, 32u << 20) << "what sockets hold, and a piece";
  EXPECT_LE(source->largest_piece, kPieceBytes);
}

TEST(BodySource, AnErrorHalfWayCutsTheConnection) {
  auto server = start(answer_with(std::make_shared<TestSource>(1 << 20, 700'000)));
  RawClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\nGET /x HTTP/1.1\r\nHost: h\r\n\r\n");
  std::string all = client.read_to_end();
  EXPECT_TRUE(client.closed());
  EXPECT_NE(all.find("Content-Length: 1048576\r\n"), std::string::npos);
  EXPECT_EQ(all.size() - all.find("\r\n\r\n") - 4, 2 * kPieceBytes) << "what was read before";
  EXPECT_EQ(request(get(*server, "/"), soon()).status().code(), StatusCode::kUnavailable);
}

TEST(BodySource, ASlowDiskHoldsUpNobodyElse) {
  auto source = std::make_shared<TestSource>(1000);
  source->held = true;
  auto server = start(answer_with(source));
  RawClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return source->largest_piece > 0; }));
  EXPECT_EQ(request(get(*server, "/x"), soon())->body, "other");
  source->held = false;
  EXPECT_NE(client.read_until(bytes_of(990, 10)).find("200 OK"), std::string::npos);
}

// What the sinks of a server's requests saw.
struct Record {
  std::mutex mutex;
  std::string text;  // under mutex, as below
  size_t largest_piece = 0;
  std::atomic<int> num_live = 0;
  std::atomic<int> num_writes = 0;
  std::atomic<int> num_handled = 0;
  std::atomic<bool> held = false;
  size_t enough_bytes = SIZE_MAX;
};

class TestSink : public BodySink {
 public:
  explicit TestSink(Record& record) : record_(record) { ++record_.num_live; }
  ~TestSink() override { --record_.num_live; }
  bool write(std::string_view piece) override {
    ++record_.num_writes;
    while (record_.held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::lock_guard lock(record_.mutex);
    record_.text += piece;
    record_.largest_piece = std::max(record_.largest_piece, piece.size());
    return record_.text.size() < record_.enough_bytes;
  }

 private:
  Record& record_;
};

class BodySinkTest : public ::testing::Test {
 protected:
  BodySinkTest() {
    ServerOptions options;
    options.max_body_bytes = 100 << 20;
    options.admit = [this](const Request& head) -> Admission {
      if (head.path == "/refused") return {.refusal = text("no key", 401)};
      if (head.path == "/small") return {.max_body_bytes = 10, .sink = std::make_shared<TestSink>(record_)};
      if (head.path == "/plain") return {};
      return {.sink = std::make_shared<TestSink>(record_)};
    };
    server_ = start(
        [this](const Request& request, const std::shared_ptr<ResponseWriter>& writer) {
          ++record_.num_handled;
          EXPECT_EQ(request.sink != nullptr, request.path != "/plain");
          EXPECT_TRUE(request.body.empty() || request.path == "/plain");
          writer->send(text("took " + std::to_string(taken().size())));
        },
        options);
  }
  std::string taken() {
    std::lock_guard lock(record_.mutex);
    return record_.text;
  }
  bool all_gone() {
    return eventually([this] { return record_.num_live == 0; });
  }

  Record record_;
  std::unique_ptr<Server> server_;
};

TEST_F(BodySinkTest, TakesTheBodyInPieces) {
  const std::string body = bytes_of(0, 5'000'001);
  Client client;
  auto response = client.request({.method = "POST", .url = server_->url() + "/a", .body = body}, soon());
  ASSERT_TRUE(response.ok()) << response.status().to_string();
  EXPECT_EQ(response->body, "took 5000001");
  EXPECT_TRUE(taken() == body);
  EXPECT_LT(record_.largest_piece, 2 * kPieceBytes);
  // The connection goes on, and what has no sink is as it was.
  EXPECT_EQ(client.request({.method = "POST", .url = server_->url() + "/plain", .body = "x"}, soon())->status,
            200);
  RawClient chunked(server_->port());
  chunked.send("POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  chunked.send("2\r\nde\r\n0\r\n\r\nPOST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nf");
  chunked.read_until("took 5000007");
  EXPECT_EQ(taken().substr(body.size()), "abcdef");
  EXPECT_TRUE(all_gone());
}

TEST_F(BodySinkTest, WhoIsRefusedIsNotAskedForTheBody) {
  RawClient client(server_->port());
  client.send("POST /refused HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n");
  std::string all = client.read_to_end();
  EXPECT_EQ(all.find("HTTP/1.1 401"), 0u) << all;
  EXPECT_NE(all.find("no key"), std::string::npos);
  EXPECT_TRUE(client.closed());
  RawClient small(server_->port());
  small.send("POST /small HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n");
  EXPECT_EQ(small.read_to_end().find("HTTP/1.1 413"), 0u);
  // Who sends all the same gets the answer.
  auto sent = request(
      {.method = "POST", .url = server_->url() + "/refused", .body = std::string(8 << 20, 'x')}, soon());
  ASSERT_TRUE(sent.ok()) << sent.status().to_string();
  EXPECT_EQ(sent->status, 401);
  EXPECT_EQ(record_.num_handled, 0);
  EXPECT_EQ(record_.num_writes, 0);
  EXPECT_TRUE(all_gone());
}

TEST_F(BodySinkTest, ABodyWithoutALengthIsCutOffAtItsLimit) {
  RawClient client(server_->port());
  client.send("POST /small HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nxxxxxxxxxxx\r\n");
  EXPECT_EQ(client.read_until("413").find("HTTP/1.1 413"), 0u);
  EXPECT_EQ(record_.num_handled, 0);
}

TEST_F(BodySinkTest, ASinkThatHasEnoughEndsTheBody) {
  record_.enough_bytes = 1'000'000;
  auto response =
      request({.method = "POST", .url = server_->url() + "/a", .body = std::string(50 << 20, 'x')}, soon());
  ASSERT_TRUE(response.ok()) << response.status().to_string();
  EXPECT_EQ(response->status, 200);
  EXPECT_TRUE(response->headers.has_token("Connection", "close"));
  EXPECT_LT(taken().size(), 1'000'000 + 2 * kPieceBytes);
  EXPECT_TRUE(all_gone());
}

TEST_F(BodySinkTest, WhoGoesAwayLeavesNothing) {
  auto client = std::make_unique<RawClient>(server_->port());
  client->send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n" +
               std::string(1'000'000, 'x'));
  ASSERT_TRUE(eventually([this] { return record_.num_writes > 0; }));
  EXPECT_EQ(record_.num_live, 1);
  client.reset();
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(record_.num_handled, 0);
}

TEST_F(BodySinkTest, ASlowDiskHoldsUpItsOwnClientOnly) {
  record_.held = true;
  std::atomic<bool> sent = false;
  std::thread sender([&] {
    auto response =
        request({.method = "POST", .url = server_->url() + "/a", .body = std::string(64 << 20, 'x')}, soon());
    EXPECT_EQ(response.ok() ? response->body : response.status().to_string(), "took 67108864");
    sent = true;
  });
  EXPECT_TRUE(eventually([this] { return record_.num_writes > 0; }));
  EXPECT_EQ(request(get(*server_, "/plain"), soon())->status, 200);
  EXPECT_EQ(record_.num_writes, 1);
  EXPECT_FALSE(sent);
  record_.held = false;
  sender.join();
}

}  // namespace
}  // namespace llm_dist::http
