// How the sockets of a world meet: who is let in, who is turned away, who is waited for.
#include "comm/host/rendezvous.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstdio>
#include <functional>
#include <thread>

#include "comm/host/host_channel.h"
#include "tests/comm/host_test_world.h"

namespace llm_dist::comm {
namespace {

using namespace std::chrono_literals;

// Strangers hang on, hang up or bring a wrong secret while the ranks meet: none is let in, none is in the
// way.
TEST(RendezvousTest, StrangersAreRefusedAndDisturbNobody) {
  TestWorld test{.size = 2, .sockets = true};
  GatherBoard board(test.size);
  auto meet = [&](int rank) {
    HostWorld world = host_world(test, board, rank);
    auto plan = plan_sockets(world, rank == 0);
    if (!plan.ok()) return 1;
    auto deadline = soon();
    if (rank == 0) {
      auto accepted = accept_peers(*plan, {{1, 0}, {1, 1}}, deadline);
      return accepted.ok() && (*accepted)[0].valid() && (*accepted)[1].valid() ? 0 : 2;
    }
    auto silent = connect_to(plan->endpoints[0], deadline);
    SocketPlan wrong{.secret = plan->secret, .endpoints = plan->endpoints};
    wrong.secret[0] ^= std::byte{0x80};
    if (connect_peer(wrong, 1, {0, 0}, deadline).ok()) return 3;  // a secret that differs in one bit
    if (connect_peer(*plan, 7, {0, 0}, deadline).ok()) return 4;  // a rank that is not expected
    auto first = connect_peer(*plan, 1, {0, 0}, deadline);
    if (!first.ok() || connect_peer(*plan, 1, {0, 0}, deadline).ok()) return 5;  // twice the same
    return connect_peer(*plan, 1, {0, 1}, deadline).ok() ? 0 : 6;
  };
  pid_t root = fork_rank([&] { return meet(0); });
  pid_t other = fork_rank([&] { return meet(1); });
  EXPECT_EQ(wait_rank(root), 0);
  EXPECT_EQ(wait_rank(other), 0);
}

// Rank 0 accepts rank 1; rank 1 does what `approach` does.
void meet(const std::function<int(const SocketPlan&, Deadline)>& approach) {
  auto codes = run_ranks({.size = 2, .sockets = true}, [&](const HostWorld& world) {
    auto plan = plan_sockets(world, world.rank == 0);
    RANK_CHECK(plan.ok());
    if (world.rank == 1) return approach(*plan, soon());
    RANK_CHECK(accept_peers(*plan, {{1, 0}}, soon()).ok());
    return 0;
  });
  EXPECT_EQ(codes, fine(2));
}

// A rank that gets no processor time between connecting and its first word is let in all the same: a relay
// keeps the word back for longer than any limit but the launch's.
TEST(RendezvousTest, APeerMayBeSilentForLong) {
  meet([](const SocketPlan& plan, Deadline deadline) {
    auto relay = listen_at("127.0.0.1");
    if (!relay.ok()) return 1;
    std::thread carrier([&] {
      auto onward = connect_to(plan.endpoints[0], deadline);
      std::this_thread::sleep_for(3500ms);
      ASSERT_TRUE(onward.ok() && wait_ready(relay->fd, POLLIN, deadline).ok());
      auto inward = accept_one(*relay);
      ASSERT_TRUE(inward.ok() && wait_ready(*inward, POLLIN, deadline).ok());
      std::array<std::byte, 4096> word;
      IoResult heard = read_some(*inward, word);
      ASSERT_TRUE(write_fully(*onward, std::span(word).first(heard.bytes), deadline).ok());
      auto answer = std::byte{0};
      ASSERT_TRUE(read_fully(*onward, std::span(&answer, 1), deadline).ok());
      EXPECT_TRUE(write_fully(*inward, std::span(&answer, 1), deadline).ok());
    });
    SocketPlan through_relay{.secret = plan.secret, .endpoints = {relay->endpoint}};
    bool met = connect_peer(through_relay, 1, {0, 0}, deadline).ok();
    carrier.join();
    return met && !testing::Test::HasFailure() ? 0 : 2;
  });
}

TEST(RendezvousTest, ACrowdOfSilentStrangersGivesWay) {
  meet([](const SocketPlan& plan, Deadline deadline) {
    std::vector<Fd> silent;
    for (int i = 0; i < 100; ++i) {
      auto stranger = connect_to(plan.endpoints[0], deadline);
      if (!stranger.ok()) return 1;
      silent.push_back(std::move(*stranger));
    }
    return connect_peer(plan, 1, {0, 0}, deadline).ok() ? 0 : 2;
  });
}

// Where every rank has reached rank 0 once they reach it again, whatever else its host's routes lead to.
TEST(RendezvousTest, RankZeroOffersTheAddressAtWhichTheRanksHaveMet) {
  for (const char* met_at : {"127.0.0.2", "::1"}) {
    if (!listen_at(met_at).ok()) continue;  // IPv6 can be switched off
    for (const char* second_host : {"one", "another"}) {
      TestWorld test{.size = 2, .sockets = true, .hosts = {"one", second_host}};
      auto codes = run_ranks(test, [&](const HostWorld& world) {
        HostWorld mine = world;
        if (world.rank == 0) mine.root_address = met_at;
        auto plan = plan_sockets(mine, true);
        RANK_CHECK(plan.ok());
        RANK_CHECK(plan->endpoints[0].address == met_at);
        RANK_CHECK(is_loopback(plan->endpoints[1].address));
        return 0;
      });
      EXPECT_EQ(codes, fine(2)) << met_at << ", " << second_host;
    }
  }
}

TEST(RendezvousTest, ANamedInterfaceComesBeforeTheAddressOfTheMeeting) {
  auto codes =
      run_ranks({.size = 2, .sockets = true, .hosts = {"one", "another"}}, [](const HostWorld& world) {
        HostWorld mine = world;
        mine.interface_name = "lo";
        mine.root_address = "127.0.0.2";
        auto plan = plan_sockets(mine, world.rank == 0);
        RANK_CHECK(plan.ok());
        RANK_CHECK(plan->endpoints[0].address == "127.0.0.1");
        return 0;
      });
  EXPECT_EQ(codes, fine(2));
}

TEST(RendezvousTest, MissingRanksAreNamedOnceEach) {
  auto codes = run_ranks({.size = 3, .sockets = true}, [](const HostWorld& world) {
    auto plan = plan_sockets(world, world.rank == 0);
    RANK_CHECK(plan.ok());
    if (world.rank != 0) return 0;
    auto why = [&](const std::vector<PeerLane>& expected) {
      return accept_peers(*plan, expected, Deadline::after(100ms)).status();
    };
    RANK_CHECK(why({{1, 0}}).code() == StatusCode::kDeadlineExceeded);
    const std::string where = to_string(plan->listener.endpoint);
    RANK_CHECK(why({{1, 0}}).message().starts_with(
        "no connection came from rank 1 to the address that was offered, " + where));
    std::string both = why({{1, 0}, {1, 1}, {2, 0}, {2, 1}}).message();
    RANK_CHECK(both.find("from ranks 1, 2 to") != std::string::npos);
    RANK_CHECK(both.find("--interface") != std::string::npos);
    return 0;
  });
  EXPECT_EQ(codes, fine(3));
}

TEST(RendezvousTest, WhoCannotConnectSaysWhereAndWhatToDo) {
  auto gone = listen_at("127.0.0.1");
  ASSERT_TRUE(gone.ok());
  SocketPlan plan{.endpoints = {gone->endpoint}};
  gone->fd = Fd();
  Status status = connect_peer(plan, 1, {0, 0}, soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  for (const std::string& word :
       {std::string("rank 0"), to_string(plan.endpoints[0]), std::string("--interface")})
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

TEST(RendezvousTest, AnUnknownInterfaceIsNamed) {
  auto codes = run_ranks({.size = 2, .sockets = true}, [](const HostWorld& world) {
    HostWorld mine = world;
    if (world.rank == 0) mine.interface_name = "no-such-card";
    Status status = make_host_channel({.world = mine}).status();
    RANK_CHECK(status.code() == StatusCode::kNotFound);
    RANK_CHECK(status.message().find("there are: lo") != std::string::npos);
    return 0;
  });
  EXPECT_EQ(codes, fine(2));
}

}  // namespace
}  // namespace llm_dist::comm
