// The host channel over every transport: order, sizes, back-pressure, abort, what is left behind.
#include "comm/host/host_channel.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "comm/host/byte_ring.h"
#include "comm/host/segment.h"
#include "tests/comm/host_test_world.h"

namespace llm_dist::comm {
namespace {

using namespace std::chrono_literals;

struct Transport {
  const char* name;
  TestWorld world;
};

void PrintTo(const Transport& transport, std::ostream* out) { *out << transport.name; }

class HostChannelTest : public testing::TestWithParam<Transport> {
 protected:
  TestWorld of_size(int size) const {
    TestWorld world = GetParam().world;
    world.size = size;
    if (!world.hosts.empty()) {
      world.hosts.assign(static_cast<size_t>(size), "other-host");
      world.hosts[0] = "one-host";
      if (size > 2) world.hosts[1] = "one-host";
    }
    return world;
  }
};

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Message number `index`, the same on every rank.
std::vector<std::byte> pattern(uint32_t index, size_t bytes) {
  std::vector<std::byte> message(bytes);
  std::mt19937 random(index);
  for (auto& byte : message) byte = static_cast<std::byte>(random());
  return message;
}

// Publishes messages of `sizes` on rank 0 and checks each on the others.
int stream_messages(const HostWorld& world, HostChannelOptions options, const std::vector<size_t>& sizes) {
  options.world = world;
  auto channel = make_host_channel(options);
  RANK_CHECK(channel.ok());
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    auto expected = pattern(i, sizes[i]);
    if (world.rank == 0) {
      RANK_CHECK((*channel)->publish(expected, soon()).ok());
    } else {
      auto message = (*channel)->receive(soon());
      RANK_CHECK(message.ok());
      RANK_CHECK(message->size() == expected.size());
      RANK_CHECK(std::equal(expected.begin(), expected.end(), message->begin()));
    }
  }
  return 0;
}

TEST_P(HostChannelTest, MessagesArriveInOrderAtEveryReader) {
  std::vector<size_t> sizes(500, 200);
  std::iota(sizes.begin(), sizes.end(), 0);
  auto codes =
      run_ranks(of_size(4), [&](const HostWorld& world) { return stream_messages(world, {}, sizes); });
  EXPECT_EQ(codes, fine(4));
}

TEST_P(HostChannelTest, SmallRingWrapsAndPassesMessagesLargerThanItself) {
  std::vector<size_t> sizes;
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) sizes.push_back(random() % (i % 10 == 0 ? 5000 : 150));
  sizes.push_back(1 << 16);
  auto codes = run_ranks(of_size(3), [&](const HostWorld& world) {
    return stream_messages(world, {.ring_bytes = 256, .reserved_message_bytes = 16}, sizes);
  });
  EXPECT_EQ(codes, fine(3));
}

TEST_P(HostChannelTest, BulkMessageOfMegabytes) {
  auto codes = run_ranks(of_size(3), [&](const HostWorld& world) {
    return stream_messages(world, {}, {100, size_t{5} << 20, 0, 100});
  });
  EXPECT_EQ(codes, fine(3));
}

TEST_P(HostChannelTest, SlowReaderHoldsTheWriterBackAndLosesNothing) {
  auto codes = run_ranks(of_size(3), [&](const HostWorld& world) {
    auto channel = make_host_channel({.world = world, .ring_bytes = 1024});
    RANK_CHECK(channel.ok());
    for (uint32_t i = 0; i < 200; ++i) {
      if (world.rank == 0) {
        RANK_CHECK((*channel)->publish(pattern(i, 300), soon()).ok());
        continue;
      }
      if (world.rank == 2 && i % 20 == 0) std::this_thread::sleep_for(10ms);
      auto message = (*channel)->receive(soon());
      RANK_CHECK(message.ok());
      RANK_CHECK(std::memcmp(message->data(), pattern(i, 300).data(), 300) == 0);
    }
    return 0;
  });
  EXPECT_EQ(codes, fine(3));
}

TEST_P(HostChannelTest, ReaderThatNeverReadsRunsThePublisherOutOfTime) {
  auto codes = run_ranks(of_size(2), [&](const HostWorld& world) {
    auto channel = make_host_channel({.world = world, .ring_bytes = 1024});
    RANK_CHECK(channel.ok());
    if (world.rank == 0) {
      std::vector<std::byte> huge(size_t{16} << 20);
      auto begin = Clock::now();
      Status status = (*channel)->publish(huge, Deadline::after(300ms));
      RANK_CHECK(status.code() == StatusCode::kDeadlineExceeded);
      RANK_CHECK(seconds_between(begin, Clock::now()) < 30);
      RANK_CHECK(world.all_gather("gave up").ok());
      // Half of it may be on its way: nothing can follow.
      RANK_CHECK((*channel)->publish(bytes_of("x"), soon()).code() == StatusCode::kDeadlineExceeded);
      RANK_CHECK((*channel)->try_take_report().status().code() == StatusCode::kDeadlineExceeded);
      return 0;
    }
    RANK_CHECK(world.all_gather("has not read").ok());
    RANK_CHECK((*channel)->receive(soon()).status().code() == StatusCode::kDeadlineExceeded);
    return 0;
  });
  EXPECT_EQ(codes, fine(2));
}

TEST_P(HostChannelTest, ReceiveThatRanOutOfTimeCanBeRepeated) {
  auto codes = run_ranks(of_size(2), [&](const HostWorld& world) {
    auto channel = make_host_channel({.world = world});
    RANK_CHECK(channel.ok());
    if (world.rank == 0) {
      RANK_CHECK(world.all_gather("").ok());
      RANK_CHECK((*channel)->publish(bytes_of("late"), soon()).ok());
      return 0;
    }
    auto begin = Clock::now();
    RANK_CHECK((*channel)->receive(Deadline::after(30ms)).status().code() == StatusCode::kDeadlineExceeded);
    RANK_CHECK(seconds_between(begin, Clock::now()) >= 0.029);
    RANK_CHECK(world.all_gather("in vain").ok());
    auto message = (*channel)->receive(soon());
    RANK_CHECK(message.ok() && text_of(*message) == "late");
    return 0;
  });
  EXPECT_EQ(codes, fine(2));
}

TEST_P(HostChannelTest, ReportsReachRankZeroInOrder) {
  constexpr int kReports = 400;
  auto codes = run_ranks(of_size(4), [&](const HostWorld& world) {
    auto channel = make_host_channel({.world = world});
    RANK_CHECK(channel.ok());
    if (world.rank != 0) {
      for (uint32_t i = 0; i < kReports;) {
        Status status = (*channel)->report(pattern(i, i % 20 == 0 ? kMaxReportBytes : i));
        RANK_CHECK(status.ok() || status.code() == StatusCode::kResourceExhausted);
        if (status.ok())
          ++i;
        else
          std::this_thread::sleep_for(1ms);
      }
      RANK_CHECK((*channel)->receive(soon()).ok());  // leaves when rank 0 has all
      return 0;
    }
    std::vector<uint32_t> next(4, 0);
    auto limit = soon();
    for (int taken = 0; taken < 3 * kReports && !limit.expired();) {
      auto report = (*channel)->try_take_report();
      RANK_CHECK(report.ok());
      if (!report->has_value()) {
        std::this_thread::yield();
        continue;
      }
      uint32_t i = next[static_cast<size_t>((*report)->rank)]++;
      auto expected = pattern(i, i % 20 == 0 ? kMaxReportBytes : i);
      RANK_CHECK(text_of((*report)->bytes) == text_of(expected));
      ++taken;
    }
    RANK_CHECK((next == std::vector<uint32_t>{0, kReports, kReports, kReports}));
    RANK_CHECK((*channel)->publish(bytes_of("done"), soon()).ok());
    return 0;
  });
  EXPECT_EQ(codes, fine(4));
}

// Each rank in turn aborts while the others block; all must return the cause quickly.
TEST_P(HostChannelTest, AbortWakesEveryRankWithItsCause) {
  for (int aborter = 0; aborter < 4; ++aborter) {
    auto codes = run_ranks(of_size(4), [&](const HostWorld& world) {
      auto channel = make_host_channel({.world = world, .ring_bytes = 1024});
      RANK_CHECK(channel.ok());
      // More than the sockets' buffers hold, so that rank 0 blocks.
      std::vector<std::byte> huge(world.rank == 0 ? size_t{16} << 20 : 0);
      auto begin = Clock::now();
      Status status;
      if (world.rank == aborter) {
        std::this_thread::sleep_for(100ms);
        (*channel)->abort(data_loss(format("rank {} broke", aborter)));
        if (world.rank == 0)
          status = (*channel)->publish(bytes_of("x"), soon());
        else
          status = (*channel)->receive(soon()).status();
      } else if (world.rank == 0) {
        while (status.ok()) status = (*channel)->publish(huge, soon());
      } else {
        // One reader stalls, so that rank 0 blocks in publish.
        if (world.rank == (aborter == 3 ? 2 : 3)) std::this_thread::sleep_for(300ms);
        while (status.ok()) status = (*channel)->receive(soon()).status();
      }
      RANK_CHECK(seconds_between(begin, Clock::now()) < 30);
      RANK_CHECK(status.code() == StatusCode::kDataLoss);
      RANK_CHECK(status.message() == format("rank {} broke", aborter));
      return 0;
    });
    EXPECT_EQ(codes, fine(4)) << "aborted by rank " << aborter;
  }
}

TEST_P(HostChannelTest, AbortFromAnotherThreadWakesABlockedCall) {
  auto codes = run_ranks(of_size(2), [&](const HostWorld& world) {
    auto channel = make_host_channel({.world = world});
    RANK_CHECK(channel.ok());
    if (world.rank == 0) {
      // Rank 0 makes no call: the cause must arrive without its help, and reach it.
      auto limit = soon();
      while ((*channel)->try_take_report().ok() && !limit.expired()) std::this_thread::sleep_for(1ms);
      RANK_CHECK((*channel)->try_take_report().status().message() == "from a thread");
      return 0;
    }
    std::thread aborter([&] {
      std::this_thread::sleep_for(50ms);
      (*channel)->abort(cancelled("from a thread"));
    });
    Status status = (*channel)->receive(soon()).status();
    aborter.join();
    RANK_CHECK(status.code() == StatusCode::kCancelled && status.message() == "from a thread");
    return 0;
  });
  EXPECT_EQ(codes, fine(2));
}

TEST_P(HostChannelTest, ClosedByRankZeroAfterTheLastMessage) {
  auto codes = run_ranks(of_size(3), [&](const HostWorld& world) {
    auto channel = make_host_channel({.world = world});
    RANK_CHECK(channel.ok());
    if (world.rank == 0) {
      RANK_CHECK((*channel)->publish(bytes_of("last"), soon()).ok());
      return 0;
    }
    std::this_thread::sleep_for(50ms);
    auto last = (*channel)->receive(soon());
    RANK_CHECK(last.ok() && text_of(*last) == "last");
    RANK_CHECK((*channel)->receive(soon()).status().code() == StatusCode::kUnavailable);
    return 0;
  });
  EXPECT_EQ(codes, fine(3));
}

TEST_P(HostChannelTest, PublishToARankThatLeftSaysWhich) {
  auto codes = run_ranks(of_size(3), [&](const HostWorld& world) {
    auto channel = make_host_channel({.world = world, .ring_bytes = 1024});
    RANK_CHECK(channel.ok());
    if (world.rank == 2) return 0;
    if (world.rank == 1) {
      while ((*channel)->receive(soon()).ok()) continue;
      return 0;
    }
    Status status;
    auto limit = soon();
    while (status.ok() && !limit.expired()) status = (*channel)->publish(pattern(0, 5000), soon());
    RANK_CHECK(status.code() == StatusCode::kUnavailable);
    RANK_CHECK(status.message().find("rank 2") != std::string::npos);
    return 0;
  });
  EXPECT_EQ(codes, fine(3));
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         HostChannelTest,
                         testing::Values(Transport{"memory_threads", {.processes = false}},
                                         Transport{"memory_processes", {.processes = true}},
                                         Transport{"sockets_threads", {.processes = false, .sockets = true}},
                                         Transport{"sockets_processes", {.processes = true, .sockets = true}},
                                         Transport{"two_hosts", {.processes = true, .hosts = {"two"}}}),
                         [](const auto& transport) { return transport.param.name; });

TEST(HostChannelSetup, OneRankAlone) {
  auto channel = make_host_channel({.world = {.hosts = {"here"}}});
  ASSERT_TRUE(channel.ok());
  EXPECT_EQ((*channel)->info().transport, "none");
  EXPECT_TRUE((*channel)->publish(bytes_of("nobody"), soon()).ok());
  EXPECT_FALSE((*channel)->try_take_report()->has_value());
  (*channel)->abort(aborted("over"));
  EXPECT_EQ((*channel)->publish(bytes_of("x"), soon()).message(), "over");
}

TEST(HostChannelSetup, AFailingRankFailsEveryRank) {
  auto codes = run_ranks({.size = 3}, [&](const HostWorld& world) {
    HostWorld mine = world;
    if (world.rank == 1) mine.hosts.pop_back();
    auto channel = make_host_channel({.world = mine});
    RANK_CHECK(!channel.ok());
    RANK_CHECK(channel.status().code() == StatusCode::kInvalidArgument);
    return 0;
  });
  EXPECT_EQ(codes, fine(3));
}

// Writer and readers at one address, where a thread sanitizer sees what they share.
TEST(ByteRingTest, ThreadsReadEveryByteInOrder) {
  constexpr size_t kTotal = 200'000;
  std::vector<std::max_align_t> memory(ByteRing::memory_bytes(256, 2) / sizeof(std::max_align_t) + 8);
  void* aligned = memory.data();
  size_t space = memory.size() * sizeof(std::max_align_t);
  auto* base = static_cast<std::byte*>(std::align(64, ByteRing::memory_bytes(256, 2), aligned, space));
  ByteRing::format(base, 256, 2);
  auto bytes = pattern(3, kTotal);
  auto read_all = [&](int reader) {
    ByteRing ring = ByteRing::attach(base);
    std::vector<std::byte> got(kTotal);
    for (size_t at = 0; at < kTotal;) {
      ring.data_event().wait([&] { return ring.readable(reader) > 0; }, soon(), 2us);
      at += ring.read(reader, std::span(got).subspan(at));
    }
    EXPECT_EQ(got, bytes);
  };
  std::thread first(read_all, 0);
  std::thread second(read_all, 1);
  ByteRing ring = ByteRing::attach(base);
  for (std::span<const std::byte> left = bytes; !left.empty();) {
    ring.space_event().wait([&] { return ring.has_room(); }, soon(), 2us);
    left = left.subspan(ring.stage(left.first(std::min<size_t>(left.size(), 1 + left.size() % 77))));
    ring.commit();
  }
  first.join();
  second.join();
}

TEST(SegmentTest, SecretMismatchIsRefused) {
  auto segment = Segment::create(1000);
  ASSERT_TRUE(segment.ok());
  SegmentOffer offer = segment->offer();
  EXPECT_TRUE(Segment::attach(offer).ok());
  offer.secret[31] ^= std::byte{1};
  EXPECT_EQ(Segment::attach(offer).status().code(), StatusCode::kFailedPrecondition);
  offer = segment->offer();
  offer.bytes += 4096;
  EXPECT_EQ(Segment::attach(offer).status().code(), StatusCode::kFailedPrecondition);
}

// But for those that other tests and MPI make, which may run at the same time.
std::set<std::string> files_in_dev_shm() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    std::string name = entry.path().filename();
    bool of_others = false;
    for (const char* others : {"llm-dist-store-", "llm-dist-test-", "vader_segment"})
      of_others = of_others || name.starts_with(others);
    if (!of_others) names.insert(std::move(name));
  }
  return names;
}

// Kills the whole world after a delay that sweeps over the setup and the first messages.
TEST(SegmentTest, NothingIsLeftWheneverTheWorldIsKilled) {
  std::set<std::string> before = files_in_dev_shm();
  for (int delay_us = 0; delay_us < 12000; delay_us += 600) {
    TestWorld test{.size = 3};
    GatherBoard board(test.size);
    std::vector<pid_t> pids;
    for (int rank = 0; rank < test.size; ++rank)
      pids.push_back(fork_rank([&] {
        stream_messages(host_world(test, board, rank), {}, std::vector<size_t>(100000, 100));
        while (true) ::pause();  // one that was through, or found another one dead
        return 0;
      }));
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    for (pid_t pid : pids) ::kill(pid, SIGKILL);
    for (pid_t pid : pids) EXPECT_EQ(wait_rank(pid), 128 + SIGKILL);
    std::set<std::string> after = files_in_dev_shm();
    EXPECT_TRUE(std::includes(before.begin(), before.end(), after.begin(), after.end()));
  }
}

}  // namespace
}  // namespace llm_dist::comm
