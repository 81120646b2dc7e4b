#include "comm/message_world.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "comm/message_wait.h"

namespace llm_dist::comm {
namespace {

struct Started {
  void* recv = nullptr;
  const void* send = nullptr;
  size_t bytes = 0;
  int tag = 0;
};

// What a test and the channels of its transport share.
struct Wire {
  int answers = 1000;  // rounds that the peer takes part in from now on
  std::vector<Started> withdrawn;
};

// A peer that says whatever this rank says, while it answers at all.
class EchoChannel : public MessageChannel {
 public:
  explicit EchoChannel(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}

  Status start_send(const void* data, size_t bytes, int, int tag) override {
    started_.push_back({.send = data, .bytes = bytes, .tag = tag});
    return ok_status();
  }
  Status start_recv(void* data, size_t bytes, int, int tag) override {
    started_.push_back({.recv = data, .bytes = bytes, .tag = tag});
    return ok_status();
  }
  Result<bool> progress() override {
    if (started_.empty()) return true;
    if (wire_->answers == 0) return false;
    --wire_->answers;
    for (const Started& recv : started_) {
      if (recv.recv == nullptr) continue;
      for (const Started& send : started_)
        if (send.send != nullptr) std::memcpy(recv.recv, send.send, recv.bytes);
    }
    started_.clear();
    return true;
  }
  std::vector<int> waiting_for() override { return {1}; }
  void cancel() override {
    wire_->withdrawn.insert(wire_->withdrawn.end(), started_.begin(), started_.end());
    started_.clear();
  }

 private:
  std::shared_ptr<Wire> wire_;
  std::vector<Started> started_;
};

class EchoTransport : public MessageTransport {
 public:
  explicit EchoTransport(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string address() const override { return {}; }
  std::unique_ptr<MessageChannel> open_channel(int, std::span<const int>) override {
    return std::make_unique<EchoChannel>(wire_);
  }
  void post_notice(int, std::span<const std::byte>) override {}
  std::string take_notice() override { return ""; }
  Status finalize() override { return ok_status(); }

 private:
  std::shared_ptr<Wire> wire_;
};

std::unique_ptr<World> world_over(const std::shared_ptr<Wire>& wire) {
  const WorldOptions options{.setup_timeout = std::chrono::milliseconds(50)};
  return make_message_world(std::make_unique<EchoTransport>(wire), "echo", {.rank = 0, .size = 2}, options)
      .value();
}

// The peer goes on with what was withdrawn, as a library may that moves data by itself: under
// AddressSanitizer a test fails where memory is gone.
void go_on_with(const std::vector<Started>& withdrawn) {
  int sum = 0;
  for (const Started& message : withdrawn) {
    if (message.recv != nullptr) std::memset(message.recv, 0x5a, message.bytes);
    for (size_t i = 0; message.send != nullptr && i < message.bytes; ++i)
      sum += static_cast<const uint8_t*>(message.send)[i];
  }
  EXPECT_NE(sum, 0);
}

// In its first round, of lengths, and in its second.
// Whoever waits loses little time by it, and who waits for a long time looks seldom.
TEST(Backoff, SleepsForAShareOfTheWait) {
  using namespace std::chrono_literals;
  const auto after = [](Duration waited) { return Backoff::sleep_after(waited, Backoff::kLongestSleep); };
  EXPECT_EQ(after(100us), 20us);
  EXPECT_EQ(after(1600us), 100us);
  EXPECT_EQ(after(5ms), 200us);
  EXPECT_EQ(after(12ms), 200us);
  EXPECT_EQ(after(64ms), 1ms);
  EXPECT_EQ(after(1min), 2ms);
  EXPECT_EQ(Backoff::sleep_after(1min, Backoff::kShortestSleep), 20us);
}

TEST(MessageWorld, KeepsTheMemoryOfAGatherThatWasWithdrawn) {
  for (int answers : {0, 1}) {
    auto wire = std::make_shared<Wire>();
    std::unique_ptr<World> world = world_over(wire);
    EXPECT_EQ(world->all_gather_bytes("word", Deadline::after_seconds(5)).value(),
              (std::vector<std::string>{"word", "word"}));
    wire->answers = answers;
    EXPECT_EQ(world->all_gather_bytes(std::string(1000, 'a'), Deadline::after_seconds(0.05)).status().code(),
              StatusCode::kDeadlineExceeded);
    ASSERT_EQ(wire->withdrawn.size(), 2);
    go_on_with(wire->withdrawn);
  }
}

TEST(MessageWorld, AbortEndsItsGroupsAlsoBehindAFailedGather) {
  auto wire = std::make_shared<Wire>();
  std::unique_ptr<World> world = world_over(wire);
  const std::vector<int> both = {0, 1};
  auto group = world->make_communicator(both, "pair");
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  wire->answers = 0;
  EXPECT_FALSE(world->barrier(Deadline::after_seconds(0.05)).ok());
  EXPECT_TRUE((*group)->poll().ok());
  world->abort(aborted("lost"));
  EXPECT_NE((*group)->poll().message().find("lost"), std::string::npos) << (*group)->poll().to_string();
}

TEST(MessageWorld, KeepsTheMemoryOfAGroupThatWasNotMade) {
  auto wire = std::make_shared<Wire>();
  std::unique_ptr<World> world = world_over(wire);
  wire->answers = 0;
  const std::vector<int> as_first = {0, 1};
  EXPECT_EQ(world->make_communicator(as_first, "pair").status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_EQ(wire->withdrawn.size(), 1);  // the other one's proposal
  std::memset(wire->withdrawn[0].recv, 0x5a, wire->withdrawn[0].bytes);
}

TEST(MessageWorld, KeepsTheMemoryOfItsOwnProposal) {
  auto wire = std::make_shared<Wire>();
  std::unique_ptr<World> world = world_over(wire);
  wire->answers = 0;
  const std::vector<int> as_second = {1, 0};
  EXPECT_EQ(world->make_communicator(as_second, "pair").status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_EQ(wire->withdrawn.size(), 2);
  go_on_with(wire->withdrawn);
}

}  // namespace
}  // namespace llm_dist::comm
