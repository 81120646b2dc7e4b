// The server's main paths over real sockets: echo, keep-alive, pipelining, routing, draining, addresses.
#include "src/http/server.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "src/http/router.h"
#include "tests/http/raw_client.h"

namespace llm_dist::http {
namespace {

void echo(const Request& request, const std::shared_ptr<ResponseWriter>& writer) {
  Response response = text(request.method + ' ' + request.path + ' ' + request.body);
  response.headers.set("X-Peer", request.peer);
  writer->send(response);
}

TEST(Server, EchoesOverOneKeptConnection) {
  auto server = start(echo);
  Client client;
  std::string peer;
  for (int i = 0; i < 3; ++i) {
    auto response = client.request(
        {.method = "POST", .url = server->url() + "/x", .body = "b" + std::to_string(i)}, soon());
    ASSERT_TRUE(response.ok()) << response.status().to_string();
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->content_type, "text/plain");
    EXPECT_EQ(response->body, "POST /x b" + std::to_string(i));
    ASSERT_NE(response->headers.find("Date"), nullptr);
    if (i == 0) peer = *response->headers.find("X-Peer");
    EXPECT_EQ(*response->headers.find("X-Peer"), peer) << "a new connection was made";
  }
}

TEST(Server, NamesItsHostWhereItListensAtAllAddresses) {
  char name[256] = "";
  ASSERT_EQ(::gethostname(name, sizeof(name) - 1), 0);
  for (const char* host : {"0.0.0.0", "::"}) {
    auto server = start(echo, {.host = host});
    EXPECT_EQ(server->url(), std::string("http://") + name + ":" + std::to_string(server->port()));
  }
  EXPECT_TRUE(start(echo)->url().starts_with("http://127.0.0.1:"));
}

TEST(Server, HasALocalUrlThatNothingNeedsToResolve) {
  for (const char* host : {"127.0.0.1", "localhost", "0.0.0.0", "::"}) {
    auto server = Server::create({.host = host}, echo);
    if (!server.ok() && std::string(host) == "::") continue;  // a machine without IPv6
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    std::string url = server.value()->local_url();
    EXPECT_TRUE(url.starts_with("http://127.0.0.1:") || url.starts_with("http://[::1]:")) << url;
    EXPECT_TRUE(request({.url = url}, soon()).ok()) << url;
  }
}

TEST(Server, ANameThatDoesNotResolveIsNoUrlOfReplicas) {
  std::thread([] {
    // Of this thread alone.
    if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname("llm-dist.invalid", 16) != 0) return;
    auto server = start(echo, {.host = "0.0.0.0"});
    EXPECT_TRUE(server->url().starts_with("http://llm-dist.invalid:"));
    EXPECT_TRUE(request({.url = server->resolvable_url()}, soon()).ok()) << server->resolvable_url();
  }).join();
}

TEST(Server, AnswersPipelinedRequestsInOrder) {
  // The first answer comes last: order must not depend on it.
  std::vector<std::thread> threads;
  auto server = start([&](const Request& request, std::shared_ptr<ResponseWriter> writer) {
    if (request.path != "/slow") return echo(request, writer);
    threads.emplace_back([writer] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      writer->send(text("slow"));
    });
  });
  RawClient client(server->port());
  client.send(
      "GET /slow HTTP/1.1\r\nHost: h\r\n\r\nPOST /two HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
      "GET /three HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  std::string all = client.read_to_end();
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(client.closed());
  size_t slow = all.find("\r\n\r\nslow"), two = all.find("POST /two abc"), three = all.find("GET /three");
  ASSERT_NE(three, std::string::npos) << all;
  EXPECT_LT(slow, two);
  EXPECT_LT(two, three);
  EXPECT_NE(all.find("Connection: close", two), std::string::npos);
}

std::string many_requests(int count) {
  std::string all;
  for (int i = 0; i < count; ++i)
    all += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\nX: " + std::string(900, 'a') + "\r\n\r\n";
  return all;
}

TEST(Server, AnswersPipelinedRequestsThatItsBufferDoesNotHold) {
  auto server = start(echo);
  RawClient client(server->port());
  constexpr int kCount = 500;
  std::thread sender([&] { EXPECT_TRUE(client.send(many_requests(kCount))); });
  const std::string last = "GET /" + std::to_string(kCount - 1) + ' ';
  EXPECT_NE(client.read_until(last).find(last), std::string::npos);
  sender.join();
  EXPECT_FALSE(client.closed());
}

TEST(Server, NoticesThatAClientIsGoneWhoseRequestsItsBufferDoesNotHold) {
  for (const bool streams : {false, true}) {
    std::promise<std::shared_ptr<ResponseWriter>> asked;
    auto server = start([&](const Request&, std::shared_ptr<ResponseWriter> writer) {
      if (streams) writer->start_stream(200, {});
      asked.set_value(std::move(writer));
    });
    std::promise<void> told;
    auto client = std::make_unique<RawClient>(server->port());
    client->send(many_requests(200));
    const auto writer = asked.get_future().get();
    writer->on_disconnect([&] { told.set_value(); });
    client.reset();
    EXPECT_EQ(told.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready) << streams;
  }
}

TEST(Server, EndsAConnectionWhoseRequestsItThrewAwayWithTheWholeAnswer) {
  std::promise<std::shared_ptr<ResponseWriter>> asked;
  auto server = start(
      [&](const Request&, std::shared_ptr<ResponseWriter> writer) { asked.set_value(std::move(writer)); });
  RawClient client(server->port());
  ASSERT_TRUE(client.send(many_requests(20'000))) << "no end is reached: what comes is read";
  asked.get_future().get()->send(text("late"));
  const std::string all = client.read_to_end();
  EXPECT_NE(all.find("Connection: close"), std::string::npos) << all;
  EXPECT_TRUE(all.ends_with("late")) << all;
  EXPECT_TRUE(client.closed());
}

TEST(Server, PassesOverEmptyLinesInFrontOfARequest) {
  auto server = start(echo);
  RawClient client(server->port());
  client.send("\r\nPOST /one HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\r\n\r\n\r\n\r\n");
  EXPECT_NE(client.read_until("POST /one abc").find("POST /one abc"), std::string::npos);
  client.send("GET /two HTTP/1.1\r\nHost: h\r\n\r\n\r");
  EXPECT_NE(client.read_until("GET /two ").find("GET /two "), std::string::npos);
  client.send("\nGET /three HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(client.read_until("GET /three ").find("GET /three "), std::string::npos);
}

TEST(Server, ReadsChunkedRequestBodies) {
  auto server = start(echo);
  RawClient client(server->port());
  client.send("POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab");
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  client.send("c\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_NE(client.read_until("abcde").find("POST /c abcde"), std::string::npos);
}

TEST(Server, HeadHasNoBodyAndTheConnectionGoesOn) {
  auto server = start(echo);
  RawClient client(server->port());
  client.send("HEAD /h HTTP/1.1\r\nHost: h\r\n\r\nGET /g HTTP/1.1\r\nHost: h\r\n\r\n");
  std::string all = client.read_until("GET /g ");
  EXPECT_NE(all.find("Content-Length: 8\r\n"), std::string::npos) << all;
  EXPECT_EQ(all.find("HEAD /h"), std::string::npos) << all;
}

TEST(Server, ServesHttp10) {
  auto server = start(echo);
  RawClient client(server->port());
  client.send("GET /old HTTP/1.0\r\n\r\n");
  std::string all = client.read_to_end();
  EXPECT_TRUE(client.closed());
  EXPECT_NE(all.find("GET /old"), std::string::npos);
}

TEST(Server, SaysContinueBeforeTheBody) {
  auto server = start(echo);
  RawClient client(server->port());
  client.send("POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_NE(client.read_until("POST /e ok").find("200 OK"), std::string::npos);
  RawClient other(server->port());
  other.send("POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: magic\r\n\r\n");
  EXPECT_NE(other.read_to_end().find("HTTP/1.1 417"), std::string::npos);
}

TEST(Server, ADroppedOrThrowingHandlerIsA500) {
  auto server = start([](const Request& request, const std::shared_ptr<ResponseWriter>&) {
    if (request.path == "/throw") throw std::runtime_error("deliberate");
  });
  Client client;
  EXPECT_EQ(client.request(get(*server, "/drop"), soon())->status, 500);
  EXPECT_EQ(client.request(get(*server, "/throw"), soon())->status, 500);
}

// As one whose bytes find no memory.
class BrokenSource : public BodySource {
 public:
  uint64_t bytes() const override { throw std::bad_alloc(); }
  Status read(std::span<char>) override { return ok_status(); }
};

TEST(Server, AnAnswerThatThrowsLeavesRoomForAnother) {
  auto server = start([](const Request& request, const std::shared_ptr<ResponseWriter>& writer) {
    EXPECT_THROW(writer->send({.source = std::make_shared<BrokenSource>()}), std::bad_alloc);
    if (request.path == "/told") writer->send(text("no memory", 507));
  });
  Client client;
  EXPECT_EQ(client.request(get(*server, "/told"), soon())->status, 507);
  EXPECT_EQ(client.request(get(*server, "/dropped"), soon())->status, 500);
}

TEST(Server, WhoCannotBeAnsweredIsCutOff) {
  ServerOptions options;
  options.render_error = [](int, const std::string&) -> Response { throw std::bad_alloc(); };
  auto server = start([](const Request&, const std::shared_ptr<ResponseWriter>&) {}, options);
  EXPECT_EQ(Client().request(get(*server, "/"), soon()).status().code(), StatusCode::kUnavailable);
}

TEST(Server, AResponseIsSentOnce) {
  std::atomic<bool> second = true;
  auto server = start([&](const Request&, const std::shared_ptr<ResponseWriter>& writer) {
    writer->send(text("first"));
    second =
        writer->send(text("second")) || writer->start_stream(200, {}) || writer->write("x") || writer->end();
  });
  Client client;
  EXPECT_EQ(client.request(get(*server, "/"), soon())->body, "first");
  EXPECT_EQ(client.request(get(*server, "/"), soon())->body, "first");
  EXPECT_FALSE(second);
}

TEST(Server, HeaderValuesCannotSplitTheResponse) {
  auto server = start([](const Request&, const std::shared_ptr<ResponseWriter>& writer) {
    Response response = text("ok");
    response.headers.add("X-Echo", "a\r\nX-Injected: 1");
    writer->send(response);
  });
  auto response = request(get(*server, "/"), soon());
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->headers.find("X-Injected"), nullptr);
}

Response shouting(int status, const std::string& message) { return text("E:" + message, status); }

TEST(Server, AddedHeadersStandInEveryAnswer) {
  auto server = start([](const Request& request, const std::shared_ptr<ResponseWriter>& writer) {
    writer->add_header("X-Tag", "first");
    writer->add_header("X-Tag", request.path);
    if (request.path == "/stream") {
      writer->start_stream(200, {});
      writer->add_header("X-Late", "no");
      writer->end();
    } else if (request.path == "/send") {
      writer->send({.body = "x"});
    }
  });
  for (const char* path : {"/stream", "/send", "/dropped"}) {
    auto response = Client().request(get(*server, path), soon());
    ASSERT_TRUE(response.ok()) << path;
    ASSERT_EQ(response->headers.count("X-Tag"), 1u) << path;
    EXPECT_EQ(*response->headers.find("X-Tag"), path);
    EXPECT_EQ(response->headers.count("X-Late"), 0u);
  }
}

TEST(Router, PicksByPathAndMethod) {
  Router router(shouting);
  router.add("GET", "/v1/jobs/{id}", [](const Request& r, const auto& w) {
    w->send(text("job " + std::string(r.path_param("id"))));
  });
  router.add("POST", "/v1/jobs/{id}/cancel", [](const Request& r, const auto& w) {
    w->send(text("cancel " + std::string(r.path_param("id"))));
  });
  router.add("GET", "/v1/jobs", echo);
  auto server = start(router);
  Client client;
  auto ask = [&](const std::string& method, const std::string& path) {
    auto response = client.request({.method = method, .url = server->url() + path}, soon());
    EXPECT_TRUE(response.ok()) << response.status().to_string();
    return std::move(response).value();
  };
  EXPECT_EQ(ask("GET", "/v1/jobs?limit=1").body, "GET /v1/jobs ");
  EXPECT_EQ(ask("GET", "/v1/jobs/a%2Fb").body, "job a/b");
  EXPECT_EQ(ask("POST", "/v1/jobs/7/cancel").body, "cancel 7");
  EXPECT_EQ(ask("HEAD", "/v1/jobs").status, 200);
  Response missing = ask("GET", "/v1/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.body, "E:no such path: /v1/nothing");
  EXPECT_EQ(ask("GET", "/v1/jobs/").status, 404);
  Response wrong = ask("DELETE", "/v1/jobs/7");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(*wrong.headers.find("Allow"), "GET, HEAD, OPTIONS");
  Response options = ask("OPTIONS", "/v1/jobs/7/cancel");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(*options.headers.find("Allow"), "POST, OPTIONS");
  EXPECT_EQ(ask("GET", "/v1/jobs").status, 200) << "the connection is out of step after a 204";
}

TEST(Server, APortInUseIsNamed) {
  auto first = start(echo);
  ServerOptions options;
  options.port = first->port();
  auto second = Server::create(options, echo);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find(std::to_string(first->port())), std::string::npos);
  EXPECT_NE(second.status().message().find("--port"), std::string::npos);
}

TEST(Server, ServesAUnixSocket) {
  ServerOptions options;
  options.uds_path = "/tmp/llm_dist_http_" + std::to_string(::getpid()) + ".sock";
  auto server = start(echo, options);
  struct stat info{};
  ASSERT_EQ(::stat(options.uds_path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  auto response = request(get(*server, "/u"), soon());
  ASSERT_TRUE(response.ok()) << response.status().to_string();
  EXPECT_EQ(response->body, "GET /u ");
  EXPECT_EQ(*response->headers.find("X-Peer"), "unix");
  EXPECT_EQ(Server::create(options, echo).status().code(), StatusCode::kFailedPrecondition);
  server.reset();
  EXPECT_NE(::access(options.uds_path.c_str(), F_OK), 0) << "the socket file was left behind";
}

TEST(Server, StopAcceptingFreesThePortAndKeepsConnections) {
  auto server = start(echo);
  Client kept;
  ASSERT_TRUE(kept.request(get(*server, "/"), soon()).ok());
  server->stop_accepting();
  EXPECT_EQ(request(get(*server, "/"), soon()).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(kept.request(get(*server, "/"), soon()).ok());
}

TEST(Server, ShutdownWaitsForOpenResponses) {
  std::shared_ptr<ResponseWriter> open;
  std::atomic<bool> arrived = false;
  auto server = start([&](const Request& request, std::shared_ptr<ResponseWriter> writer) {
    if (request.path == "/idle") return echo(request, writer);
    writer->start_stream(200, sse_headers());
    open = std::move(writer);
    arrived = true;
  });
  RawClient idle(server->port());
  idle.send("GET /idle HTTP/1.1\r\nHost: h\r\n\r\n");
  idle.read_until("GET /idle");
  RawClient busy(server->port());
  busy.send("GET /busy HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return arrived.load(); }));
  std::atomic<bool> down = false;
  Status status;
  std::thread stopper([&] {
    status = server->shutdown(soon());
    down = true;
  });
  EXPECT_EQ(idle.read_to_end(), "") << "an idle connection is closed at once";
  EXPECT_TRUE(idle.closed());
  EXPECT_FALSE(down);
  EXPECT_TRUE(open->write("data: last\n\n"));
  EXPECT_TRUE(open->end());
  EXPECT_NE(busy.read_until("0\r\n\r\n").find("data: last"), std::string::npos);
  busy.shutdown_write();
  stopper.join();
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(Server, ShutdownCutsOffWhatOutlivesTheDeadline) {
  std::shared_ptr<ResponseWriter> open;
  std::atomic<bool> arrived = false, gone = false;
  auto server = start([&](const Request&, std::shared_ptr<ResponseWriter> writer) {
    writer->on_disconnect([&] { gone = true; });
    open = std::move(writer);
    arrived = true;
  });
  RawClient client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return arrived.load(); }));
  EXPECT_EQ(server->shutdown(Deadline::after_seconds(0.02)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(gone);
  server.reset();
  EXPECT_FALSE(open->send(text("late"))) << "a writer outlives its server";
}

TEST(Server, SeveralIoThreads) {
  ServerOptions options;
  options.num_io_threads = 3;
  auto server = start(echo, options);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(request(get(*server, "/t"), soon())->status, 200);
}

TEST(Client, ReportsWhatWentWrong) {
  std::shared_ptr<ResponseWriter> unanswered;
  auto server =
      start([&](const Request&, std::shared_ptr<ResponseWriter> writer) { unanswered = std::move(writer); });
  EXPECT_EQ(request(get(*server, "/"), Deadline::after_seconds(0.03)).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(request({.url = "ftp://x/"}, soon()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(request({.url = server->url(), .headers = {{"A", "b\r\nC: d"}}}, soon()).status().code(),
            StatusCode::kInvalidArgument);
  uint16_t port = server->port();
  server.reset();
  EXPECT_EQ(request({.url = "http://127.0.0.1:" + std::to_string(port)}, soon()).status().code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace llm_dist::http
