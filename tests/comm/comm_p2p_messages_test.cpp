// Messages over peer memory from one rank to another.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "comm/nccl_loader.h"
#include "comm/p2p/peer_layout.h"
#include "tests/comm/p2p_fixture.h"
#include "tests/comm/whole_device.h"

namespace llm_dist::comm {
namespace {

// With the last, messages from one rank to another go now one way, now the other, and some not over peer
// memory.
const Ways kWays[] = {
    {"Defaults", default_peer_limits(2, {.hands_off = true})},
    {"Packets", PeerLimits{.message_bytes = kEverything, .message_packets_bytes = kEverything}},
    {"Staged", PeerLimits{.message_bytes = kEverything}},
    {"AllWays", PeerLimits{.message_bytes = 64 << 10, .message_packets_bytes = 4096}},
};

// The part of the suite in which messages are sent, of groups that hand off.
class P2pHandOffConformance : public testing::TestWithParam<CaseOverWays> {};

TEST_P(P2pHandOffConformance, Case) {
  auto [size, ways, tried] = GetParam();
  run_in_threads(size, ways.limits, tried.run);
}

std::vector<CaseOverWays> suite() {
  constexpr std::string_view kOfMessages[] = {"SendAndRecvKeepOrder",
                                              "EveryRankReachesEveryOther",
                                              "ARingOverTwoCommunicatorsFlows",
                                              "AReceiverDoesNotWaitForEver"};
  return cases_over(kWays, [&](const Ways&, std::string_view name) {
    return std::ranges::find(kOfMessages, name) != std::end(kOfMessages);
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus, P2pHandOffConformance, testing::ValuesIn(suite()), name_of_case);

// A message has a place of its own in the tensor that it is sent from, and in the one where it arrives.
struct Sending {
  int from = 0;
  int to = 0;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t skew = 0;  // where it arrives begins so many elements behind where it is sent from
};

// The same on every rank: of all sizes, odd, unaligned, a few elements apart. In one direction several follow
// each other.
std::vector<Sending> sendings_in(int64_t elements, int size, unsigned seed) {
  std::mt19937 generator(seed);
  auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(generator); };
  std::vector<Sending> sendings;
  Sending next{.from = 0, .to = 1};
  for (int64_t begin = up_to(9);;) {
    if (up_to(4) == 1) {
      next.from = static_cast<int>(up_to(size)) - 1;
      next.to = static_cast<int>(next.from + up_to(size - 1)) % size;
    }
    const int64_t size_class = up_to(20);
    next.begin = begin;
    next.count = up_to(size_class == 1 ? elements / 4 : size_class < 6 ? 30000 : 2000);
    if (up_to(3) == 1) next.count = (next.count + 15) / 16 * 16;
    next.skew = up_to(2) == 1 ? 0 : up_to(3);
    begin += next.count + next.skew + up_to(9);
    if (begin > elements) return sendings;
    sendings.push_back(next);
  }
}

// One rank's tensors; what is sent is known of every rank.
template <typename T>
class MessagesUnderTest {
 public:
  MessagesUnderTest(Site& site, GroupUnderTest& group, int64_t elements)
      : group_(group),
        out_(SiteTensor<T>::known(site, group.rank(), elements)),
        before_(SiteTensor<T>::known(site, kBefore, elements)),
        in_(site, elements) {
    for (SiteTensor<T>* tensor : {&out_, &before_, &in_}) tensor->upload(*group.stream);
  }

  void restart() { group_.stream->copy(in_.view(), before_.view()); }
  void issue(const Sending& sending) {
    issue_send(sending, *group_.stream);
    issue_receive(sending, *group_.stream);
  }
  // This rank's part of it, if any.
  void issue_send(const Sending& sending, device::Stream& stream) {
    if (sending.from == group_.rank())
      group_.comm->send(out_.view(sending.begin, sending.count), sending.to, stream);
  }
  void issue_receive(const Sending& sending, device::Stream& stream) {
    if (sending.to == group_.rank())
      group_.comm->recv(in_.view(sending.begin + sending.skew, sending.count), sending.from, stream);
  }
  // Keeps this rank's GPU busy.
  void fall_behind(unsigned copies) {
    for (unsigned i = 0; i < copies; ++i) group_.stream->copy(out_.view(), out_.view());
  }
  // All that came since a restart, and what lies between.
  void expect(std::span<const Sending> sendings) {
    in_.download(*group_.stream);
    ASSERT_TRUE(group_.synchronize().ok()) << group_.stream->error().to_string();
    std::vector<double> expected(static_cast<size_t>(in_.size()));
    for (int64_t i = 0; i < in_.size(); ++i)
      expected[static_cast<size_t>(i)] = as_double(known_value<T>(kBefore, i));
    for (const Sending& sending : sendings) {
      if (sending.to != group_.rank()) continue;
      for (int64_t i = sending.begin; i < sending.begin + sending.count; ++i)
        expected[static_cast<size_t>(i + sending.skew)] = as_double(known_value<T>(sending.from, i));
    }
    EXPECT_EQ(first_difference(in_, [&](int64_t i) { return expected[static_cast<size_t>(i)]; }), -1);
  }

 private:
  static constexpr int kBefore = 9;

  GroupUnderTest& group_;
  SiteTensor<T> out_;
  SiteTensor<T> before_;
  SiteTensor<T> in_;
};

class P2pMessages : public OverWays {};

// Hundreds of messages that no host waits for, between all ranks; now the one who sends comes late to one,
// now the one who receives. One that was put where an earlier one had not been read, or taken for a later
// one, would show.
TEST_P(P2pMessages, OfAllSizesBackToBack) {
  run([](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto check = [&](auto type, unsigned seed) {
      using T = decltype(type);
      constexpr int64_t kElements = 1 << 20;
      MessagesUnderTest<T> messages(site, group, kElements);
      const std::vector<Sending> sendings = sendings_in(kElements, group.size(), seed);
      std::mt19937 generator(seed);
      messages.restart();
      for (const Sending& sending : sendings) {
        const unsigned who = generator() % static_cast<unsigned>(4 * group.size());
        const unsigned copies = 1 + generator() % 20;
        if (static_cast<int>(who) == group.rank()) messages.fall_behind(copies);
        messages.issue(sending);
      }
      SCOPED_TRACE(std::to_string(sizeof(T)) + " bytes, seed " + std::to_string(seed));
      messages.expect(sendings);
    };
    for (unsigned seed = 1; seed <= 4; ++seed) {
      check(uint8_t{}, seed);
      check(BFloat16{}, seed + 10);
      check(float{}, seed + 20);
    }
  });
}

// A graph of messages of all sizes, replayed by ranks that are now ahead and now behind.
TEST_P(P2pMessages, GraphsReplayManyTimes) {
  run([](World& world, Site& site) {
    constexpr int64_t kElements = 1 << 18;
    GroupUnderTest group = make_group(world, site);
    MessagesUnderTest<BFloat16> messages(site, group, kElements);
    const std::vector<Sending> sendings = sendings_in(kElements, group.size(), 7);
    auto issue = [&] {
      messages.restart();
      for (const Sending& sending : sendings) messages.issue(sending);
    };
    replay_in_graph(
        world, site, group, {.issue = issue, .expect = [&] { messages.expect(sendings); }, .replays = 200});
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         P2pMessages,
                         testing::Combine(testing::Values(2, 3, 4, 8), testing::ValuesIn(kWays)),
                         name_of_ways);

// What follows is not promised of the communicator behind.
class P2pMessagesAlone : public P2pMessages {};

// Each rank sends to the next one and receives from the one before, on a stream each. None of them could wait
// for the end of what it sends.
TEST_P(P2pMessagesAlone, GoBothWaysAtOnce) {
  run([](World& world, Site& site) {
    constexpr int64_t kElements = 3 << 20;
    std::unique_ptr<device::Stream> receives = site.backend().make_stream("receives");
    std::unique_ptr<device::Event> ready = site.backend().make_event();
    std::unique_ptr<device::Event> received = site.backend().make_event();
    GroupUnderTest group = make_group(world, site);
    MessagesUnderTest<uint8_t> messages(site, group, kElements);
    const int previous = (group.rank() + group.size() - 1) % group.size();
    for (unsigned seed = 1; seed <= 6; ++seed) {
      std::vector<Sending> sendings = sendings_in(kElements, group.size(), seed);
      std::vector<Sending> to_here;
      messages.restart();
      group.stream->record(*ready);
      receives->wait(*ready);
      for (Sending sending : sendings) {
        sending.from = group.rank();
        sending.to = (group.rank() + 1) % group.size();
        messages.issue_send(sending, *group.stream);
        sending.from = previous;
        sending.to = group.rank();
        messages.issue_receive(sending, *receives);
        to_here.push_back(sending);
      }
      receives->record(*received);
      group.stream->wait(*received);
      messages.expect(to_here);
    }
  });
}

// As many messages as there are slots go out before anyone receives, and none too many; and of one that is
// larger than the slots together only a part.
TEST_P(P2pMessagesAlone, ASenderIsAheadUpToItsSlots) {
  run([](World& world, Site& site) {
    constexpr int64_t kCount = 1001;
    constexpr int64_t kLarge = 12 << 20;
    GroupUnderTest group = make_group(world, site);
    MessagesUnderTest<uint8_t> small(site, group, 32 * kCount);
    MessagesUnderTest<uint8_t> large(site, group, kLarge / 4);
    auto sending = [](int64_t i) {
      return Sending{.from = 0, .to = 1, .begin = i * kCount, .count = kCount};
    };
    std::vector<Sending> all;
    auto meet = [&] { ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok()); };
    small.restart();
    large.restart();
    ASSERT_TRUE(group.synchronize().ok());
    for (int64_t i = 0; i < kMessageSlots; ++i) {
      all.push_back(sending(i));
      small.issue_send(all.back(), *group.stream);
    }
    ASSERT_TRUE(group.synchronize(10).ok()) << group.stream->error().to_string();
    meet();
    all.push_back(sending(kMessageSlots));
    small.issue_send(all.back(), *group.stream);
    if (group.rank() == 0) expect_waiting(*group.stream);
    meet();
    for (const Sending& each : all) small.issue_receive(each, *group.stream);
    small.expect(all);
    meet();
    std::vector<Sending> of_large;
    for (int i = 0; i < 12; ++i) of_large.push_back({.from = 0, .to = 1, .count = kLarge / 4});
    for (const Sending& each : of_large) large.issue_send(each, *group.stream);
    if (group.rank() == 0) expect_waiting(*group.stream);
    meet();
    for (const Sending& each : of_large) large.issue_receive(each, *group.stream);
    large.expect(of_large);
  });
}

// The peer never receives what the first rank has no room for, or never sends what it waits for.
TEST_P(P2pMessagesAlone, AnAbortEndsWhoeverWaits) {
  for (bool sends : {true, false}) {
    SCOPED_TRACE(sends ? "as a sender" : "as a receiver");
    run([sends](World& world, Site& site) {
      constexpr int kMessages = 64;
      GroupUnderTest group = make_group(world, site, "doomed", 600);
      MessagesUnderTest<BFloat16> messages(site, group, 1 << 20);
      auto issue_one = [&](int64_t count) {
        if (sends) messages.issue_send({.from = 0, .to = 1, .count = count}, *group.stream);
        if (!sends) messages.issue_receive({.from = 1, .to = 0, .count = count}, *group.stream);
      };
      auto issue = [&] {
        for (int i = 0; i < kMessages; ++i) issue_one(i % 2 == 0 ? 576 : 900000);
      };
      auto issue_more = [&] { issue_one(1); };
      const bool waiting = group.rank() == 0;
      expect_abort_to_end(world, group, {.waiting = waiting, .issue = issue, .issue_more = issue_more});
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         P2pMessagesAlone,
                         testing::Combine(testing::Values(2, 3),
                                          testing::ValuesIn(std::span(kWays).first(3))),
                         name_of_ways);

class P2pMessagesWaiting : public OverWays {
 protected:
  // While the second rank waits for a message, of all lengths, some of them over NCCL: how many
  // multiprocessors of its GPU others have, as `expect_room` wants.
  void expect_while_waiting(const std::function<void(int met)>& expect_room) const {
    run([&](World& world, Site& site) {
      constexpr int64_t kCount = (9 << 20) + 1;  // more than the slots take
      std::unique_ptr<device::Stream> compute = site.backend().make_stream("compute");
      GroupUnderTest group = make_group(world, site);
      MessagesUnderTest<uint8_t> messages(site, group, kCount);
      SiteTensor<int32_t> met(site, 2);
      auto meet_here = [&] {
        met[0] = met[1] = 0;
        met.upload(*compute);
        const auto stream = static_cast<cudaStream_t>(compute->native());
        EXPECT_EQ(meet_on_whole_device(static_cast<uint32_t*>(met.view().data), 1.0, stream), cudaSuccess);
        met.download(*compute);
        EXPECT_TRUE(compute->synchronize(Deadline::after_seconds(30)).ok());
        return met[1];
      };
      EXPECT_EQ(meet_here(),
                num_multiprocessors());  // loads the kernel, too, which takes a device that is idle
      auto meet = [&] { ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok()); };
      for (int64_t count : {int64_t{100}, int64_t{3} << 20, kCount}) {
        SCOPED_TRACE(std::to_string(count) + " bytes");
        const Sending sending{.from = 0, .to = 1, .count = count};
        messages.restart();
        ASSERT_TRUE(group.synchronize().ok());
        messages.issue_receive(sending, *group.stream);
        if (group.rank() == 1) {
          expect_room(meet_here());
          expect_waiting(*group.stream);
        }
        meet();
        messages.issue_send(sending, *group.stream);
        messages.expect(std::span(&sending, 1));
        meet();
      }
    });
  }
};

TEST_P(P2pMessagesWaiting, HoldNoRoom) {
  expect_while_waiting([](int met) { EXPECT_EQ(met, num_multiprocessors()); });
}

TEST_P(P2pMessagesWaiting, HoldRoomInKernels) {
  open_nccl_module().value()->allow_stream_waits(false);
  expect_while_waiting([](int met) { EXPECT_LT(met, num_multiprocessors()); });
  open_nccl_module().value()->allow_stream_waits(true);
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         P2pMessagesWaiting,
                         testing::Combine(testing::Values(2), testing::ValuesIn(kWays)),
                         name_of_ways);

// On both sides of each limit, from one byte on.
TEST(P2pMessagesOfTwo, GoOverPeerMemoryUpToTheLimit) {
  constexpr int64_t kPackets = 256;
  constexpr int64_t kMost = 8192;
  std::vector<int> left(2);  // until the communicators have gone, which is after the body
  run_with(2, PeerLimits{}, [&](World& world, Site& site) {
    int& left_here = left[static_cast<size_t>(world.rank_info().rank)];
    auto check = [&](const PeerLimits& limits) {
      GroupUnderTest group = make_group_without_nccl(world, site, limits, left_here);
      MessagesUnderTest<uint8_t> messages(site, group, 1 << 16);
      for (int64_t count : {int64_t{1}, kPackets - 1, kPackets, kPackets + 1, kMost - 1, kMost, kMost + 1}) {
        SCOPED_TRACE(std::to_string(count) + " bytes of at most " + std::to_string(limits.message_bytes));
        const int before = left_here;
        const bool over_peers = count <= limits.message_bytes;
        const std::vector<Sending> sendings = {{.from = 0, .to = 1, .begin = 3, .count = count, .skew = 2}};
        messages.restart();
        messages.issue(sendings[0]);
        messages.expect(std::span(sendings).first(over_peers ? 1 : 0));
        EXPECT_EQ(left_here - before, over_peers ? 0 : 1);
      }
      const int before = left_here;
      SiteTensor<float> nothing(site, 1);
      group.comm->send(nothing.view(0, 0), 1 - group.rank(), *group.stream);
      group.comm->recv(nothing.view(0, 0), 1 - group.rank(), *group.stream);
      EXPECT_EQ(left_here - before, 0);
    };
    check({});
    check({.message_bytes = kMost});
    check({.message_bytes = kMost, .message_packets_bytes = kPackets});
  });
}

}  // namespace
}  // namespace llm_dist::comm
