// Announced messages between threads, whose streams are queues of the host.
#include "comm/announced_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/thread/thread_world.h"
#include "tests/comm/forwarding_communicator.h"

namespace llm_dist::comm {
namespace {

// Makes calls on a thread of its own, and not at once.
class CpuGate : public HostGate {
 public:
  bool takes(device::Stream&) const override { return true; }
  void tell_host(device::Stream& stream, std::function<void()> call) override {
    auto* owned = new std::function<void()>(std::move(call));
    static_cast<device::CpuStream&>(stream).enqueue([this, owned] {
      caller_.enqueue([owned] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        (*owned)();
        delete owned;
      });
    });
  }
  void finish(Deadline deadline) override { (void)caller_.synchronize(deadline); }
  void wait(device::Stream& stream, uint64_t number) override {
    static_cast<device::CpuStream&>(stream).enqueue([this, number] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return opened_ >= number; });
    });
  }
  void open(uint64_t number) override {
    std::lock_guard lock(mutex_);
    opened_ = std::max(opened_, number);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t opened_ = 0;
  device::CpuStream caller_{{.name = "calls"}};
};

// Notes which of its receives have begun.
class NotingCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  // Then nothing waits for a message's other end, and nothing is moved.
  void lose_messages() { moves_ = false; }
  void send(const Tensor& data, int peer, device::Stream& stream) override {
    if (moves_) ForwardingCommunicator::send(data, peer, stream);
  }
  void recv(const Tensor& data, int peer, device::Stream& stream) override {
    static_cast<device::CpuStream&>(stream).enqueue([this] { ++num_begun_; });
    if (moves_) ForwardingCommunicator::recv(data, peer, stream);
  }
  bool waits_on_device() const override { return true; }

  int num_begun() const { return num_begun_; }

 private:
  std::atomic<int> num_begun_{0};
  bool moves_ = true;
};

struct Rank {
  World& world;
  int rank;
  NotingCommunicator& messages;
  AnnouncedCommunicator& comm;
  device::CpuStream& stream;

  int peer() const { return 1 - rank; }
  void meet() const { ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok()); }
};

template <typename F>
void run_pair(F body, WorldOptions options = {}) {
  ThreadWorld threads(2, options);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&threads, &body, rank] {
      std::unique_ptr<World> world = threads.join(rank);
      const std::vector<int> both = {0, 1};
      auto make = [&](const char* name) { return world->make_communicator(both, name).value(); };
      auto messages = std::make_unique<NotingCommunicator>(make("messages"));
      NotingCommunicator& noting = *messages;
      AnnouncedCommunicator comm(
          std::move(messages), {make("of 0"), make("of 1")}, std::make_unique<CpuGate>());
      device::CpuStream stream({.name = "test"});
      body(Rank{*world, rank, noting, comm, stream});
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

Tensor of(std::vector<int32_t>& data) {
  return Tensor::contiguous(data.data(), DType::kI32, {static_cast<int64_t>(data.size())});
}

TEST(AnnouncedCommunicator, MessagesOfBothArriveInOrder) {
  run_pair([](const Rank& self) {
    constexpr int kMessages = 40;
    std::vector<std::vector<int32_t>> sent;
    std::vector<std::vector<int32_t>> received;
    for (int i = 0; i < kMessages; ++i) {
      const auto size = static_cast<size_t>(i % 5 * 100);  // none of some
      sent.emplace_back(size);
      std::iota(sent.back().begin(), sent.back().end(), 1000 * i + self.rank);
      received.emplace_back(size, -1);
    }
    // The ranks take turns, since each has one stream.
    for (int turn = 0; turn < 2; ++turn) {
      for (int i = 0; i < kMessages; ++i) {
        const auto index = static_cast<size_t>(i);
        if (turn == self.rank) self.comm.send(of(sent[index]), self.peer(), self.stream);
        if (turn != self.rank) self.comm.recv(of(received[index]), self.peer(), self.stream);
      }
    }
    ASSERT_TRUE(self.stream.synchronize(Deadline::after_seconds(30)).ok());
    for (int i = 0; i < kMessages; ++i) {
      const std::vector<int32_t>& got = received[static_cast<size_t>(i)];
      std::vector<int32_t> wanted(got.size());
      std::iota(wanted.begin(), wanted.end(), 1000 * i + self.peer());
      EXPECT_EQ(got, wanted) << i;
    }
    EXPECT_FALSE(self.comm.waits_on_device());
    self.meet();
  });
}

TEST(AnnouncedCommunicator, AReceiveBeginsWhenItsSenderHas) {
  run_pair([](const Rank& self) {
    std::vector<int32_t> data(3, self.rank);
    for (int messages = 1; messages <= 3; ++messages) {
      if (self.rank == 1) {
        self.comm.recv(of(data), 0, self.stream);
        EXPECT_FALSE(self.stream.synchronize(Deadline::after_seconds(0.05)).ok());
        EXPECT_EQ(self.messages.num_begun(), messages - 1);
      }
      self.meet();
      if (self.rank == 0) self.comm.send(of(data), 1, self.stream);
      ASSERT_TRUE(self.stream.synchronize(Deadline::after_seconds(30)).ok());
      EXPECT_EQ(self.messages.num_begun(), self.rank == 1 ? messages : 0);
      EXPECT_EQ(data[2], 0);
      self.meet();
    }
  });
}

TEST(AnnouncedCommunicator, WhoeverSendsAndEndsHasAnnounced) {
  run_pair([](const Rank& self) {
    self.messages.lose_messages();
    std::vector<int32_t> data(3, self.rank);
    if (self.rank == 0) self.comm.send(of(data), 1, self.stream);
    if (self.rank == 1) self.comm.recv(of(data), 0, self.stream);
    EXPECT_TRUE(self.stream.synchronize(Deadline::after_seconds(10)).ok());
    EXPECT_EQ(self.messages.num_begun(), self.rank);
    if (self.rank == 1) self.comm.abort(aborted("the test's end"));  // nobody comes any more
  });
}

TEST(AnnouncedCommunicator, AnAbortEndsWhoeverWaits) {
  run_pair([](const Rank& self) {
    std::vector<int32_t> data(3, self.rank);
    if (self.rank == 1) {
      for (int i = 0; i < 3; ++i) self.comm.recv(of(data), 0, self.stream);
      EXPECT_EQ(self.stream.synchronize(Deadline::after_seconds(0.05)).code(), StatusCode::kDeadlineExceeded);
      self.comm.abort(unavailable("a peer is gone"));
      EXPECT_NE(self.stream.synchronize(Deadline::after_seconds(5)).code(), StatusCode::kDeadlineExceeded);
      EXPECT_EQ(self.comm.poll().code(), StatusCode::kUnavailable);
    }
    self.meet();
  });
}

TEST(AnnouncedCommunicator, AnAnnouncementThatDoesNotComeShows) {
  run_pair(
      [](const Rank& self) {
        std::vector<int32_t> data(3, self.rank);
        if (self.rank == 1) {
          self.comm.recv(of(data), 0, self.stream);
          const Deadline deadline = Deadline::after_seconds(10);
          while (self.comm.poll().ok() && !deadline.expired())
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          EXPECT_EQ(self.comm.poll().code(), StatusCode::kDeadlineExceeded) << self.comm.poll().to_string();
          EXPECT_EQ(self.messages.num_begun(), 0);
          self.comm.abort(self.comm.poll());
        }
        self.meet();
      },
      {.collective_timeout = std::chrono::milliseconds(100)});
}

}  // namespace
}  // namespace llm_dist::comm
