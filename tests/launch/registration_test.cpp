// A replica tells the coordinator where it serves until it has an answer that stays.
#include "launch/registration.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "src/base/clock.h"
#include "src/http/server.h"

namespace llm_dist::launch {
namespace {

// Answers with these, then with the last of them.
class Coordinator {
 public:
  explicit Coordinator(std::vector<int> statuses)
      : statuses_(std::move(statuses)),
        server_(std::move(http::Server::create({}, [this](const http::Request&, const auto& writer) {
                  size_t asked = num_asked++;
                  writer->send({.status = statuses_[std::min(asked, statuses_.size() - 1)], .body = "{}"});
                })).value()) {}
  std::string url() const { return server_->url(); }
  bool is_asked(size_t times) const {
    for (Deadline patience = Deadline::after_seconds(60); !patience.expired();) {
      if (num_asked >= times) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  std::atomic<size_t> num_asked = 0;

 private:
  const std::vector<int> statuses_;
  std::unique_ptr<http::Server> server_;
};

TEST(Registration, AsksAgainWhileTheAnswerIsForNow) {
  for (int status : {408, 429, 503}) {
    Coordinator coordinator({status, 200});
    Registration registration(coordinator.url(), "{}", "");
    EXPECT_TRUE(coordinator.is_asked(2)) << status;
  }
}

size_t num_times(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(Registration, TellsEachKindOfFailureOnce) {
  testing::internal::CaptureStderr();
  {
    Coordinator coordinator({503, 503, 429, 200});
    Registration registration(coordinator.url(), "{}", "");
    EXPECT_TRUE(coordinator.is_asked(4));
    Registration nobody_there("http://127.0.0.1:1", "{}", "");
    Registration untrusted("https://127.0.0.1:1", "{}", "/no/such/certificate");
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  }
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(num_times(log, "warning"), 4u) << log;
  EXPECT_EQ(num_times(log, "it answers 503"), 1u) << log;
  EXPECT_EQ(num_times(log, "it answers 429"), 1u) << log;
  EXPECT_EQ(num_times(log, "Connection refused"), 1u) << log;
  EXPECT_EQ(num_times(log, "/no/such/certificate"), 1u) << log;
}

TEST(Registration, ARefusalIsForGood) {
  Coordinator coordinator({403});
  Registration registration(coordinator.url(), "{}", "");
  EXPECT_TRUE(coordinator.is_asked(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_EQ(coordinator.num_asked, 1u);
}

}  // namespace
}  // namespace llm_dist::launch
