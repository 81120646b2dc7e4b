// What a client cannot make the server do: grow, wait or hang.
#include <mutex>
#include <thread>

#include "src/base/log.h"
#include "tests/http/no_descriptors.h"
#include "tests/http/raw_client.h"

namespace llm_dist::http {
namespace {

void ok(const Request&, const std::shared_ptr<ResponseWriter>& writer) { writer->send(text("ok")); }

ServerOptions quick() {
  ServerOptions options;
  options.header_timeout = options.body_timeout = options.idle_timeout = std::chrono::milliseconds(100);
  return options;
}

TEST(Limits, BodyTooLargeIs413WhileTheClientIsStillSending) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  options.render_error = [](int status, const std::string& message) { return text("E:" + message, status); };
  auto server = start(ok, options);
  auto response =
      request({.method = "POST", .url = server->url(), .body = std::string(8 << 20, 'x')}, soon());
  ASSERT_TRUE(response.ok()) << response.status().to_string();
  EXPECT_EQ(response->status, 413);
  EXPECT_EQ(response->body.substr(0, 2), "E:");
  EXPECT_EQ(request({.method = "POST", .url = server->url(), .body = std::string(1000, 'x')}, soon())->status,
            200);
}

TEST(Limits, ARequestsOwnLimitIsAskedOnceItsHeaderIsWhole) {
  ServerOptions options;
  options.max_body_bytes = 1 << 20;
  options.admit = [](const Request& head) {
    return Admission{.max_body_bytes = head.path == "/large" ? uint64_t{2} << 20 : uint64_t{10}};
  };
  auto server = start(ok, options);
  auto status = [&](const std::string& path, size_t bytes) {
    auto response =
        request({.method = "POST", .url = server->url() + path, .body = std::string(bytes, 'x')}, soon());
    return response.ok() ? response->status : -1;
  };
  EXPECT_EQ(status("/", 10), 200);
  EXPECT_EQ(status("/", 11), 413);
  EXPECT_EQ(status("/large", 1 << 20), 200);
  EXPECT_EQ(status("/large", (1 << 20) + 1), 413) << "never more than the server's own";
  // Refused before the body is sent, and in the middle of one without a length.
  RawClient announced(server->port());
  announced.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n");
  EXPECT_EQ(announced.read_until("413").find("HTTP/1.1 413"), 0u);
  RawClient chunked(server->port());
  chunked.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nxxxxxxxxxxx\r\n");
  EXPECT_EQ(chunked.read_until("413").find("HTTP/1.1 413"), 0u);
}

TEST(Limits, ARequestsOwnTimeIsAskedToo) {
  ServerOptions options;
  options.body_timeout = std::chrono::milliseconds(50);
  options.admit = [](const Request& head) {
    return head.path == "/slow" ? Admission{.body_timeout = std::chrono::minutes(10)} : Admission();
  };
  auto server = start(ok, options);
  RawClient slow(server->port()), other(server->port());
  slow.send("POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nab");
  other.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nab");
  EXPECT_EQ(other.read_until("\r\n\r\n").substr(0, 12), "HTTP/1.1 408");
  slow.send("c");
  EXPECT_EQ(slow.read_until("\r\n\r\n").substr(0, 12), "HTTP/1.1 200");
}

// Such a client looks for an answer only when it has sent all: a reset on the way would take it away.
TEST(Limits, AClientThatPausesInARefusedBodyIsNotCutOff) {
  ServerOptions options;
  options.max_body_bytes = 10;
  auto server = start(ok, options);
  RawClient client(server->port());
  ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000\r\n\r\n"));
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    EXPECT_TRUE(client.send(std::string(1000, 'x'))) << i;
  }
  EXPECT_EQ(client.read_until("too large").find("HTTP/1.1 413"), 0u);
  // Nor does it hold up a server that is to end.
  TimePoint begin = Clock::now();
  EXPECT_TRUE(server->shutdown(soon()).ok());
  EXPECT_LT(seconds_between(begin, Clock::now()), 20);
}

TEST(Limits, HeaderFloodIs431) {
  ServerOptions options;
  options.max_header_bytes = 2000;
  auto server = start(ok, options);
  for (bool one_line : {true, false}) {
    RawClient client(server->port());
    std::string flood = "GET / HTTP/1.1\r\nHost: h\r\n";
    for (int i = 0; i < 1000; ++i)
      flood += one_line ? "X-Flood: aaaaaaaaaaaaaaaaaaaaaaaaaaaa" : "X-Flood: aaaaaaaaaaaaaaaaaaaaa\r\n";
    client.send(flood);
    EXPECT_EQ(client.read_until("\r\n\r\n").substr(0, 12), "HTTP/1.1 431") << one_line;
  }
}

TEST(Limits, EndlessChunkLineAndTrailersAreRefused) {
  ServerOptions options;
  options.max_header_bytes = 2000;
  auto server = start(ok, options);
  for (const char* start_of_body : {"5;ext=", "0\r\nTrailer: "}) {
    RawClient client(server->port());
    client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(start_of_body);
    client.send(std::string(40000, 'a'));
    EXPECT_EQ(client.read_until("\r\n\r\n").substr(0, 11), "HTTP/1.1 43") << start_of_body;
  }
}

// A server whose only I/O thread waits: what clients do until go_on(), it finds done when it first looks.
class HeldServer {
 public:
  explicit HeldServer(ServerOptions options)
      : server_(http::start(
            [this](const Request& request, const std::shared_ptr<ResponseWriter>& writer) {
              if (request.path == "/hold") wait();
              ok(request, writer);
            },
            std::move(options))) {
    EXPECT_TRUE(eventually([this] {
      if (!holder_ || holder_->readable()) ask();  // or again: it came too late
      return held_.load();
    }));
  }
  ~HeldServer() { go_on(); }
  uint16_t port() const { return server_->port(); }
  void go_on() { goes_on_ = true; }

 private:
  void ask() {
    holder_ = std::make_unique<RawClient>(port());
    holder_->send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  }
  void wait() {
    held_ = true;
    while (!goes_on_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::atomic<bool> held_ = false, goes_on_ = false;
  std::unique_ptr<Server> server_;
  std::unique_ptr<RawClient> holder_;
};

TEST(Limits, ASlowHeaderIs408EvenIfItKeepsDripping) {
  HeldServer server(quick());
  RawClient client(server.port());
  client.send("GET / HTTP/1.1\r\n");
  server.go_on();
  for (Deadline limit = soon(); !client.readable() && !limit.expired() && client.send("X");)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(client.read_until("\r\n\r\n").substr(0, 12), "HTTP/1.1 408");
}

TEST(Limits, TimeoutsOfHeaderBodyAndIdleConnections) {
  HeldServer server(quick());
  RawClient header(server.port()), body(server.port()), silent(server.port()), idle(server.port());
  RawClient empty_line(server.port());
  header.send("GET / HTTP/1.1\r\nHo");
  body.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc");
  idle.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  empty_line.send("\r\n");
  server.go_on();
  EXPECT_EQ(header.read_to_end().substr(0, 12), "HTTP/1.1 408");
  EXPECT_EQ(body.read_to_end().substr(0, 12), "HTTP/1.1 408");
  for (RawClient* client : {&silent, &empty_line}) {
    EXPECT_EQ(client->read_to_end(), "");
    EXPECT_TRUE(client->closed());
  }
  EXPECT_EQ(idle.read_to_end().substr(0, 12), "HTTP/1.1 200");
  EXPECT_TRUE(idle.closed());
}

TEST(Limits, MalformedRequestsAre400AndClose) {
  auto server = start(ok);
  for (const char* bytes :
       {"nonsense\r\n\r\n",
        "\rGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"}) {
    RawClient client(server->port());
    client.send(bytes);
    std::string all = client.read_to_end();
    EXPECT_EQ(all.substr(0, 12), "HTTP/1.1 400") << bytes;
    EXPECT_EQ(all.find("200 OK"), std::string::npos) << all;
    EXPECT_TRUE(client.closed());
  }
  EXPECT_EQ(request(get(*server, "/"), soon())->status, 200);
}

TEST(Limits, TooManyConnectionsAre503) {
  ServerOptions options;
  options.max_connections = 2;
  auto server = start(ok, options);
  auto one = std::make_unique<RawClient>(server->port());
  RawClient two(server->port());
  for (RawClient* client : {one.get(), &two}) {
    client->send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    client->read_until("ok");
  }
  auto refused = request(get(*server, "/"), soon());
  ASSERT_TRUE(refused.ok()) << refused.status().to_string();
  EXPECT_EQ(refused->status, 503);
  EXPECT_NE(refused->headers.find("Retry-After"), nullptr);
  one.reset();
  EXPECT_TRUE(eventually([&] { return request(get(*server, "/"), soon())->status == 200; }));
}

TEST(Limits, WithoutDescriptorsClientsAreSentAwayAndDoNotWait) {
  auto server = start(ok);
  Client let_in;
  // A sanitizer needs descriptors when it first meets a type. Twice: then the first is over.
  log_warning("a test uses up the file descriptors");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(let_in.request(get(*server, "/"), soon())->status, 200);
  {
    std::vector<RawClient> clients(3);
    NoDescriptors none;
    for (RawClient& client : clients) {
      client.connect(server->port());
      EXPECT_EQ(client.read_to_end(), "");
      EXPECT_TRUE(client.closed());
    }
  }
  EXPECT_EQ(let_in.request(get(*server, "/"), soon())->status, 200);
  EXPECT_EQ(request(get(*server, "/"), soon())->status, 200);
}

TEST(Limits, AClientThatNeverReadsAWholeResponseIsCutOff) {
  ServerOptions options;
  options.write_timeout = std::chrono::milliseconds(100);
  std::atomic<bool> answered = false;
  auto server = start(
      [&](const Request&, const std::shared_ptr<ResponseWriter>& writer) {
        writer->send(text(std::string(64 << 20, 'x')));
        answered = true;
      },
      options);
  RawClient client(server->port(), 4096);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return answered.load(); }));
  EXPECT_TRUE(server->shutdown(soon()).ok()) << "otherwise shutdown() has to cut it off";
}

}  // namespace
}  // namespace llm_dist::http
