// The watch over real sockets: replicas that answer, that refuse and that say nothing.
#include "cluster/replica_watch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "src/http/server.h"
#include "tests/http/no_descriptors.h"

namespace llm_dist::cluster {
namespace {

using std::chrono::milliseconds;

constexpr ReplicaAttempt kOne{1, 1};
constexpr ReplicaAttempt kOther{2, 1};

// Accepts connections and never says a word.
class SilentReplica {
 public:
  SilentReplica() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_, generic, size), 0);
    EXPECT_EQ(listen(socket_, 64), 0);
    EXPECT_EQ(getsockname(socket_, generic, &size), 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~SilentReplica() { close(socket_); }
  SilentReplica(const SilentReplica&) = delete;
  SilentReplica& operator=(const SilentReplica&) = delete;
  const std::string& url() const { return url_; }

 private:
  int socket_;
  std::string url_;
};

// Says what `status_of` says to the n-th probe.
class Replica {
 public:
  explicit Replica(std::function<int(int)> status_of)
      : server_(
            std::move(http::Server::create({}, [this, status_of](const http::Request&, const auto& writer) {
              int status = status_of(++num_probes);
              writer->send({.status = status, .body = "{}"});
            })).value()) {}
  std::string url() const { return server_->url(); }
  std::atomic<int> num_probes = 0;

 private:
  std::unique_ptr<http::Server> server_;
};

template <typename Condition>
bool wait_for(const Condition& condition) {
  for (Deadline patience = Deadline::after(std::chrono::seconds(60)); !patience.expired();) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return false;
}

TEST(ReplicaWatch, OneFailedProbeCountsFromItselfAndNotForLong) {
  Replica replica([](int probe) { return probe == 2 ? 503 : 200; });
  SilentReplica silent;
  auto watch = make_http_watch(milliseconds(50), milliseconds(1000));
  watch->watch(kOne, replica.url());
  watch->watch(kOther, silent.url());
  int64_t longest_us = 0;
  ASSERT_TRUE(wait_for([&] {
    longest_us = std::max(longest_us, watch->failing_us(kOne));
    return replica.num_probes >= 4;
  }));
  EXPECT_LT(longest_us, 500'000) << "a round with the other takes a second";
}

TEST(ReplicaWatch, FailingIsCountedUntilItIsWellAgain) {
  std::atomic<bool> well = false;
  Replica replica([&](int) { return well ? 200 : 503; });
  auto watch = make_http_watch(milliseconds(10), milliseconds(200));
  EXPECT_EQ(watch->failing_us(kOne), 0);
  watch->watch(kOne, replica.url());
  EXPECT_TRUE(wait_for([&] { return watch->failing_us(kOne) > 50'000; }));
  well = true;
  EXPECT_TRUE(wait_for([&] { return watch->failing_us(kOne) == 0; }));
  well = false;
  EXPECT_TRUE(wait_for([&] { return watch->failing_us(kOne) > 0; }));
  watch->forget(kOne);
  EXPECT_EQ(watch->failing_us(kOne), 0);
}

TEST(ReplicaWatch, TellsOnceWhyOneIsNotWell) {
  testing::internal::CaptureStderr();
  Replica replica([](int) { return 503; });
  auto watch = make_http_watch(milliseconds(10), milliseconds(200));
  watch->watch(kOne, replica.url());
  EXPECT_TRUE(wait_for([&] { return replica.num_probes >= 5; }));
  watch.reset();
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("it answers 503"), log.npos) << log;
  EXPECT_EQ(log.find("it answers 503"), log.rfind("it answers 503")) << log;
}

TEST(ReplicaWatch, OneIsAskedWhereAnotherIsForgotten) {
  Replica replica([](int) { return 503; });
  auto watch = make_http_watch(milliseconds(10), milliseconds(200));
  watch->watch(kOther, replica.url());
  watch->watch(kOne, replica.url());
  watch->forget(kOther);
  EXPECT_TRUE(wait_for([&] { return watch->failing_us(kOne) > 0; }));
}

TEST(ReplicaWatch, WhatItLacksItselfIsNoFailureOfAReplica) {
  Replica replica([](int) { return 200; });
  auto watch = make_http_watch(milliseconds(5), milliseconds(1000));
  watch->watch(kOne, replica.url());
  ASSERT_TRUE(wait_for([&] { return replica.num_probes >= 1; }));
  {
    http::NoDescriptors none;
    const Deadline end = Deadline::after(milliseconds(300));
    while (!end.expired()) ASSERT_EQ(watch->failing_us(kOne), 0);
  }
  const int before = replica.num_probes;
  EXPECT_TRUE(wait_for([&] { return replica.num_probes > before; }));
}

TEST(ReplicaWatch, AReplicaIsToldToDrainUntilItHasHeard) {
  std::mutex mutex;
  std::vector<std::string> asked;
  auto server = std::move(http::Server::create({}, [&](const http::Request& request, const auto& writer) {
                  if (request.path == "/livez") return void(writer->send({.body = "{}"}));
                  std::lock_guard lock(mutex);
                  const std::string* key = request.headers.find("Authorization");
                  asked.push_back(request.method + " " + request.path + " " + (key == nullptr ? "" : *key));
                  writer->send({.status = asked.size() < 3 ? 500 : 202, .body = "{}"});
                })).value();
  auto num_asked = [&] {
    std::lock_guard lock(mutex);
    return asked.size();
  };
  auto watch = make_http_watch(milliseconds(20), std::chrono::seconds(60));
  watch->watch(kOne, server->url());
  watch->drain(kOne, "secret");
  EXPECT_TRUE(wait_for([&] { return num_asked() == 3; }));
  std::this_thread::sleep_for(milliseconds(100));
  std::lock_guard lock(mutex);
  EXPECT_EQ(asked, std::vector<std::string>(3, "POST /admin/drain Bearer secret"));
}

TEST(ReplicaWatch, ItEndsWithoutAskingTheOthers) {
  SilentReplica silent;
  auto watch = make_http_watch(milliseconds(1), milliseconds(400));
  for (int i = 0; i < 100; ++i) watch->watch({i, 1}, silent.url());
  std::this_thread::sleep_for(milliseconds(100));
  auto begin = Clock::now();
  watch.reset();
  EXPECT_LT(seconds_between(begin, Clock::now()), 20) << "a round takes 40 s";
}

}  // namespace
}  // namespace llm_dist::cluster
