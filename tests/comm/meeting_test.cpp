#include "comm/tcp/meeting.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <thread>

#include "comm/bootstrap.h"
#include "comm/host/socket.h"
#include "comm/host_plane.h"
#include "comm/tcp/hmac.h"
#include "comm/tcp/tcp_world.h"
#include "src/base/format.h"

namespace llm_dist::comm {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (std::byte byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(byte));
    text += two;
  }
  return text;
}

std::string hmac(const std::string& key, const std::string& message) {
  return hex(hmac_sha256(std::as_bytes(std::span(key)), message));
}

// RFC 4231, cases 2 and 6 (a key longer than a block).
TEST(Hmac, KnownAnswers) {
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

// A port that nobody uses now, and that the kernel gives to nobody by itself until somebody listens there.
uint16_t free_port() {
  std::random_device random;
  while (true) {
    auto port = static_cast<uint16_t>(16'000 + random() % 16'000);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return port;
  }
}

// Each plan meets on a thread of its own.
std::vector<Result<SocketPlan>> meet_all(const std::vector<MeetingPlan>& plans, double seconds = 60) {
  std::vector<Result<SocketPlan>> results;
  for (size_t i = 0; i < plans.size(); ++i) results.emplace_back(internal_error("not run"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < plans.size(); ++i)
    threads.emplace_back([&, i] { results[i] = meet(plans[i], Deadline::after_seconds(seconds)); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<MeetingPlan> plans_for(int size, const std::string& secret = "") {
  uint16_t port = free_port();
  std::vector<MeetingPlan> plans;
  for (int rank = 0; rank < size; ++rank)
    plans.push_back({.rank = rank, .size = size, .address = "127.0.0.1", .port = port, .secret = secret});
  return plans;
}

TEST(Meeting, EveryRankLearnsWhereEveryRankIs) {
  for (const char* secret : {"", "a secret"}) {
    auto met = meet_all(plans_for(4, secret));
    for (auto& one : met) {
      ASSERT_TRUE(one.ok()) << one.status().to_string();
      EXPECT_EQ(one->secret, met[0]->secret);
      ASSERT_EQ(one->endpoints.size(), 4u);
      for (size_t r = 0; r < 4; ++r) EXPECT_EQ(one->endpoints[r].port, met[r]->listener.endpoint.port);
    }
  }
}

// What else the ranks connect they connect where they have met.
TEST(Meeting, TheHostPlaneIsToldWhereRankZeroWasReached) {
  auto plans = plans_for(2);
  auto join = [&](int rank) {
    MeetingPlan& plan = plans[static_cast<size_t>(rank)];
    plan.address = "127.0.0.2";
    auto world = make_tcp_world(plan, Deadline::after_seconds(60), {.rank = rank, .size = 2}, {});
    ASSERT_TRUE(world.ok()) << world.status().to_string();
    HostWorld hosts = host_world(**world, "", std::chrono::seconds(60));
    EXPECT_EQ(hosts.root_address, "127.0.0.2");
    EXPECT_EQ(hosts.hosts[0], hosts.hosts[1]);
    EXPECT_TRUE((*world)->close(Deadline::after_seconds(60)).ok());
  };
  std::thread other([&] { join(1); });
  join(0);
  other.join();
}

TEST(Meeting, SecretsDifferFromMeetingToMeeting) {
  auto once = meet_all(plans_for(2, "same"));
  auto again = meet_all(plans_for(2, "same"));
  EXPECT_NE(once[1]->secret, again[1]->secret);
}

TEST(Meeting, AnotherSecretIsRefusedByTheGuestAndDisturbsNobody) {
  auto plans = plans_for(2, "the right one");
  MeetingPlan stranger = plans[1];
  stranger.secret = "a wrong one";
  std::thread host([&] {
    auto met = meet(plans[0], Deadline::after_seconds(60));
    EXPECT_TRUE(met.ok()) << met.status().to_string();
  });
  auto refused = meet(stranger, Deadline::after_seconds(60));
  auto met = meet(plans[1], Deadline::after_seconds(60));
  host.join();
  EXPECT_TRUE(met.ok()) << met.status().to_string();
  EXPECT_EQ(refused.status().message(),
            format("rank 0 at 127.0.0.1 port {} has another launch secret than rank 1", plans[0].port));
}

TEST(Meeting, WhoSendsNonsenseOrNothingIsNotWaitedFor) {
  auto plans = plans_for(2);
  std::thread stranger([&] {
    std::vector<Fd> connections;
    for (int i = 0; i < 20; ++i) {
      auto fd = connect_to({.address = "127.0.0.1", .port = plans[0].port}, Deadline::after_seconds(1));
      if (!fd.ok()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      if (i % 2 == 0) {
        std::string nonsense(200, 'x');
        write_some(*fd, std::as_bytes(std::span(nonsense)));
      }
      connections.push_back(std::move(fd).value());
    }
    auto met = meet(plans[1], Deadline::after_seconds(60));
    EXPECT_TRUE(met.ok()) << met.status().to_string();
  });
  auto met = meet(plans[0], Deadline::after_seconds(60));
  EXPECT_TRUE(met.ok()) << met.status().to_string();
  stranger.join();
}

TEST(Meeting, ACrowdOfSilentStrangersGivesWay) {
  auto plans = plans_for(2);
  std::thread others([&] {
    std::vector<Fd> silent;
    while (silent.size() < 300) {
      auto fd = connect_to({.address = "127.0.0.1", .port = plans[0].port}, Deadline::after_seconds(1));
      if (fd.ok()) silent.push_back(std::move(fd).value());
    }
    auto met = meet(plans[1], Deadline::after_seconds(20));
    EXPECT_TRUE(met.ok()) << met.status().to_string();
  });
  auto met = meet(plans[0], Deadline::after_seconds(20));
  EXPECT_TRUE(met.ok()) << met.status().to_string();
  others.join();
}

TEST(Meeting, TheMissingAreNamedToAllWhoCame) {
  auto plans = plans_for(4);
  auto met = meet_all({plans[0], plans[2]}, 2);
  for (auto& one : met) {
    EXPECT_EQ(one.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(one.status().message().find("2 of 4 ranks are missing"), std::string::npos)
        << one.status().message();
    EXPECT_NE(one.status().message().find(": 1, 3."), std::string::npos) << one.status().message();
  }
}

TEST(Meeting, WithoutRankZeroTheOthersSayWhereTheyLooked) {
  auto plans = plans_for(2, "secret");
  auto met = meet_all({plans[1]}, 0.4);
  EXPECT_EQ(met[0].status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(met[0].status().message().find(format("127.0.0.1 port {}", plans[1].port)), std::string::npos);
}

TEST(Meeting, ContradictingLaunchesEndForEverybodyWithTheReason) {
  auto plans = plans_for(3);
  plans[2].rank = 1;
  auto met = meet_all(plans);
  for (auto& one : met) {
    EXPECT_NE(one.status().message().find("two processes say that they are rank 1"), std::string::npos)
        << one.status().message();
  }
  plans = plans_for(2);
  plans[1].size = 3;
  met = meet_all(plans);
  for (auto& one : met) {
    EXPECT_NE(one.status().message().find("rank 1 was started for 3 ranks and rank 0 for 2"),
              std::string::npos)
        << one.status().message();
  }
}

TEST(Meeting, AnAddressBeyondThisHostWantsASecret) {
  auto met = meet({.rank = 1, .size = 2, .address = "192.0.2.7", .port = 1}, Deadline::after_seconds(1));
  EXPECT_EQ(met.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(met.status().message().find("LLM_DIST_LAUNCH_SECRET"), std::string::npos);
}

TEST(Meeting, APortInUseIsNamed) {
  auto taken = listen_at("127.0.0.1");
  auto met = meet({.rank = 0, .size = 2, .address = "127.0.0.1", .port = taken->endpoint.port, .secret = "s"},
                  Deadline::after_seconds(1));
  EXPECT_EQ(met.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(met.status().message().find("--master-port"), std::string::npos) << met.status().message();
}

// --- what decides on a meeting ---

const Environment kStep = {{"SLURM_STEP_ID", "1"},
                           {"SLURM_JOB_ID", "100"},
                           {"SLURM_STEP_NUM_TASKS", "4"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_NODELIST", "gpu[007-008]"},
                           {"SLURM_PROCID", "2"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                           {"LLM_DIST_LAUNCH_SECRET", "s"}};
const Environment kTorchrun = {{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"LOCAL_RANK", "0"},
                               {"LOCAL_WORLD_SIZE", "1"},
                               {"MASTER_ADDR", "node1"},
                               {"MASTER_PORT", "1234"}};

Bootstrap planned(const BootstrapFlags& flags, const Environment& environment) {
  auto bootstrap = plan_bootstrap(flags, environment);
  CHECK(bootstrap.ok(), "{}", bootstrap.status().to_string());
  return *bootstrap;
}

TEST(Bootstrap, MpiWhereItsLauncherIs) {
  EXPECT_FALSE(planned({}, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).over_tcp);
  Environment pmix = kStep;
  pmix["PMIX_RANK"] = "2";
  EXPECT_FALSE(planned({}, pmix).over_tcp);
  EXPECT_TRUE(planned({.transport = "tcp"}, pmix).over_tcp);
}

TEST(Bootstrap, ASlurmStepWithoutPmixMeetsAtItsFirstNode) {
  Bootstrap step = planned({}, kStep);
  EXPECT_TRUE(step.over_tcp);
  EXPECT_EQ(step.meeting.address, "gpu007");
  EXPECT_EQ(step.meeting.rank, 2);
  EXPECT_EQ(step.meeting.secret, "s");
  Environment next = kStep;
  next["SLURM_STEP_ID"] = "2";
  EXPECT_NE(planned({}, next).meeting.port, step.meeting.port);
  Environment one_node = kStep;
  one_node["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_EQ(planned({}, one_node).meeting.address, "127.0.0.1");
}

TEST(Bootstrap, TorchrunsAddress) {
  EXPECT_EQ(planned({}, kTorchrun).meeting.address, "node1");
  EXPECT_EQ(planned({}, kTorchrun).meeting.port, 1234);
  Environment agent = kTorchrun;
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(planned({}, agent).meeting.port, 1235);
  EXPECT_EQ(planned({.master_addr = "other", .master_port = 5}, agent).meeting.port, 5);
  Environment no_address = kTorchrun;
  no_address.erase("MASTER_ADDR");
  EXPECT_NE(plan_bootstrap({}, no_address).status().message().find("--master-addr"), std::string::npos);
  no_address["MASTER_PORT"] = "70000";
  EXPECT_EQ(plan_bootstrap({}, no_address).status().message(), "MASTER_PORT=70000 is not a port");
}

TEST(Bootstrap, ASecretFileIsItsOwnersAlone) {
  std::string path = format("{}/llm-dist-secret-{}", testing::TempDir(), getpid());
  std::ofstream(path) << "from the file\n";
  BootstrapFlags flags{.ranks = {.rank = 1, .size = 2}, .master_addr = "node1", .secret_file = path};
  chmod(path.c_str(), 0644);
  EXPECT_NE(plan_bootstrap(flags, {}).status().message().find("chmod 600"), std::string::npos);
  chmod(path.c_str(), 0600);
  EXPECT_EQ(planned(flags, {}).meeting.secret, "from the file");
  unlink(path.c_str());
}

TEST(Bootstrap, FirstHostOfASlurmList) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("gpu[007-010,12],login"), "gpu007");
  EXPECT_EQ(first_host("gpu[7]"), "gpu7");
  EXPECT_EQ(first_host("login,gpu[1-2]"), "login");
}

}  // namespace
}  // namespace llm_dist::comm
