// Liveness: ranks in processes of their own are killed and stopped; every other one must learn it in time,
// and exactly one is told to report it.
#include "comm/host/liveness.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "comm/host/process_watch.h"
#include "src/base/check.h"
#include "tests/comm/host_test_world.h"

namespace llm_dist::comm {
namespace {

using namespace std::chrono_literals;

constexpr int kFailedExit = 3;
constexpr int kRanks = 4;
// In which the others of a dead rank are gone.
constexpr double kPromisedSeconds = 3;

// What one rank experienced, in memory that outlives it.
struct Experience {
  std::atomic<bool> watching{false};
  std::atomic<int> calls{0};
  std::atomic<int64_t> when_ns{0};
  std::atomic<bool> announce{false};  // the test asks for it
  std::atomic<int> announced_signal{0};
  int failed = -1;
  int64_t pid = 0;
  int signal = 0;
  bool reporter = false;
  char phase[64] = {};
  char cause[512] = {};
  char line[1024] = {};
};

struct Limits {
  Duration interval = 1s;
  Duration silence = 6s;
};

// A world of forked ranks that watch each other and end as soon as they hear of a failure.
class WatchedWorld {
 public:
  explicit WatchedWorld(TestWorld test, Limits limits = {}, bool exits_on_failure = true)
      : test_(std::move(test)), board_(test_.size) {
    void* memory = ::mmap(
        nullptr, sizeof(Experience) * kRanks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    experiences_ = static_cast<Experience*>(memory);
    for (int rank = 0; rank < test_.size; ++rank) {
      new (&experiences_[rank]) Experience;
      pids_.push_back(fork_rank([=, this] { return live(rank, limits, exits_on_failure); }));
    }
  }
  ~WatchedWorld() {
    for (int rank = 0; rank < test_.size; ++rank) end(rank);
    ::munmap(experiences_, sizeof(Experience) * kRanks);
  }

  bool wait_watching() {
    return wait_for([&] {
      for (int rank = 0; rank < test_.size; ++rank)
        if (!experiences_[rank].watching) return false;
      return true;
    });
  }
  void signal_rank(int rank, int signal) {
    signalled_ns_ = now_ns();
    ::kill(pids_[static_cast<size_t>(rank)], signal);
  }
  // Until its process has ended; it is reaped by `end`.
  void wait_dead(int rank) {
    siginfo_t info;
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid(rank)), &info, WEXITED | WNOWAIT), 0);
  }
  Experience& of(int rank) { return experiences_[rank]; }
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  void mark_time() { signalled_ns_ = now_ns(); }
  void end(int rank) {
    pid_t& pid = pids_[static_cast<size_t>(rank)];
    if (pid == 0) return;
    ::kill(pid, SIGKILL);
    wait_rank(pid);
    pid = 0;
  }
  int wait_exit(int rank) { return wait_rank(std::exchange(pids_[static_cast<size_t>(rank)], 0), 60); }

  template <typename Condition>
  static bool wait_for(Condition condition, double seconds = 60) {
    auto limit = Deadline::after_seconds(seconds);
    while (!condition()) {
      if (limit.expired()) return false;
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }

  // Every rank but `victim` ends with the failure, in time, called once, and the lowest of them reports.
  void expect_all_learn(int victim, double within_seconds, const std::string& cause) {
    for (int rank = 0; rank < test_.size; ++rank) {
      if (rank == victim) continue;
      SCOPED_TRACE(format("rank {} about rank {}", rank, victim));
      ASSERT_EQ(wait_exit(rank), kFailedExit);
      Experience& seen = of(rank);
      EXPECT_EQ(seen.calls, 1);
      EXPECT_EQ(seen.failed, victim);
      EXPECT_EQ(seen.pid, pid(victim) == 0 ? seen.pid : pid(victim));
      EXPECT_EQ(seen.reporter, rank == (victim == 0 ? 1 : 0));
      EXPECT_EQ(std::string(seen.phase), format("phase of {}", victim));
      EXPECT_NE(std::string(seen.cause).find(cause), std::string::npos) << seen.cause;
      EXPECT_LT(static_cast<double>(seen.when_ns - signalled_ns_) / 1e9, within_seconds);
    }
  }

 private:
  int live(int rank, Limits limits, bool exits_on_failure) {
    Experience& mine = experiences_[rank];
    auto liveness = Liveness::start({.world = host_world(test_, board_, rank),
                                     .on_failure = [&mine](const RankFailure& f) { note(mine, f); },
                                     .interval = limits.interval,
                                     .silence_limit = limits.silence});
    if (!liveness.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", rank, liveness.status().to_string().c_str());
      return 1;
    }
    std::vector<std::string> devices;
    for (int r = 0; r < test_.size; ++r) devices.push_back(format("cpu:{}", r));
    (*liveness)->set_devices(std::move(devices));
    (*liveness)->set_phase(format("phase of {}", rank));
    std::this_thread::sleep_for(limits.interval / 2);  // goes to other nodes with the next look
    mine.watching = true;
    while (!exits_on_failure || mine.calls == 0) {
      if (mine.announce.exchange(false))
        (*liveness)->announce_failure("CUDA error: illegal address\nat step 7", mine.announced_signal);
      std::this_thread::sleep_for(1ms);
    }
    ::_exit(kFailedExit);
  }

  static void note(Experience& mine, const RankFailure& failure) {
    mine.when_ns = now_ns();
    mine.failed = failure.rank;
    mine.pid = failure.pid;
    mine.signal = failure.signal;
    mine.reporter = failure.reporter;
    std::snprintf(mine.phase, sizeof(mine.phase), "%s", failure.phase.c_str());
    std::snprintf(mine.cause, sizeof(mine.cause), "%s", failure.cause.c_str());
    std::snprintf(mine.line, sizeof(mine.line), "%s", format_failure(failure).c_str());
    ++mine.calls;
  }

  TestWorld test_;
  GatherBoard board_;
  Experience* experiences_ = nullptr;
  std::vector<pid_t> pids_;
  int64_t signalled_ns_ = 0;
};

struct Transport {
  const char* name;
  TestWorld world;
};
void PrintTo(const Transport& transport, std::ostream* out) { *out << transport.name; }

const Transport kTransports[] = {
    {"memory", {.size = kRanks}},
    {"sockets", {.size = kRanks, .sockets = true}},
    {"two_hosts", {.size = kRanks, .hosts = {"a", "a", "b", "b"}}},
};

constexpr Limits kQuick{.interval = 200ms, .silence = 1500ms};

class LivenessTest : public testing::TestWithParam<Transport> {};

// One world a victim, all at once: most of the time they wait.
std::vector<std::pair<int, std::unique_ptr<WatchedWorld>>> worlds_for(const TestWorld& test,
                                                                      std::initializer_list<int> victims) {
  std::vector<std::pair<int, std::unique_ptr<WatchedWorld>>> worlds;
  for (int victim : victims) worlds.emplace_back(victim, std::make_unique<WatchedWorld>(test));
  return worlds;
}

TEST_P(LivenessTest, KilledRankIsKnownToAllWithinSeconds) {
  auto worlds = worlds_for(GetParam().world, {0, 1, kRanks - 1});
  for (auto& [victim, world] : worlds) {
    ASSERT_TRUE(world->wait_watching());
    world->signal_rank(victim, SIGKILL);
    world->expect_all_learn(victim, kPromisedSeconds, "ended without a goodbye");
  }
}

TEST_P(LivenessTest, AnnouncedFailureArrivesWithItsCause) {
  auto worlds = worlds_for(GetParam().world, {0, 2});
  for (auto& [victim, world] : worlds) {
    ASSERT_TRUE(world->wait_watching());
    world->mark_time();
    world->of(victim).announce = true;
    world->expect_all_learn(victim, kPromisedSeconds, "CUDA error: illegal address");
    EXPECT_EQ(world->of(1).signal, 0);
    // The one that announced it hears it too, and does not report while others live.
    ASSERT_EQ(world->wait_exit(victim), kFailedExit);
    EXPECT_EQ(world->of(victim).failed, victim);
    EXPECT_FALSE(world->of(victim).reporter);
    std::string line = world->of(1).line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
    const std::string device = format("device cpu:{}", victim);
    for (const char* part : {"rank ", "host ", "pid ", device.c_str(), "phase phase of ", "CUDA error"})
      EXPECT_NE(line.find(part), std::string::npos) << line;
  }
}

TEST_P(LivenessTest, SignalThatEndedARankArrivesWithItsEnd) {
  auto worlds = worlds_for(GetParam().world, {0, 2});
  for (auto& [victim, world] : worlds) {
    ASSERT_TRUE(world->wait_watching());
    world->mark_time();
    world->of(victim).announced_signal = SIGTERM;
    world->of(victim).announce = true;
    world->expect_all_learn(victim, kPromisedSeconds, "CUDA error: illegal address");
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != victim) {
        EXPECT_EQ(world->of(rank).signal, SIGTERM) << rank;
      }
    }
  }
}

// As when all run out of memory: each node sees its own ranks' announcements first.
TEST_P(LivenessTest, OneRankReportsWhatAllAnnounce) {
  constexpr int kAttempts = 5;
  int by_one = 0;
  int by_rank_0_alone = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    WatchedWorld world(GetParam().world, {}, false);
    ASSERT_TRUE(world.wait_watching());
    for (int rank = 0; rank < kRanks; ++rank) world.of(rank).announce = true;
    int reporters = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(WatchedWorld::wait_for([&] { return world.of(rank).calls > 0; }));
      reporters += world.of(rank).reporter ? 1 : 0;
    }
    if (reporters == 1) ++by_one;
    if (world.of(0).reporter && reporters == 1) ++by_rank_0_alone;
  }
  // A rank that was held up had announced nothing yet when one node judged, and had when the other did.
  EXPECT_GE(by_one, kAttempts - 1);
  EXPECT_GT(by_rank_0_alone, kAttempts / 2);
}

// The victims of a dead rank complain at once, before its end is noticed: it is still the one to name.
TEST_P(LivenessTest, DeathOutweighsTheComplaintsItCauses) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    WatchedWorld world(GetParam().world, {}, false);
    ASSERT_TRUE(world.wait_watching());
    auto begin = Clock::now();
    world.of(1).announce = true;
    std::this_thread::sleep_for(10ms);
    world.signal_rank(3, SIGKILL);
    world.wait_dead(3);
    if (Clock::now() - begin > LivenessOptions().settle / 2) continue;  // this thread or the rank was held up
    ASSERT_TRUE(WatchedWorld::wait_for([&] { return world.of(0).calls > 0 && world.of(2).calls > 0; }));
    EXPECT_EQ(world.of(0).failed, 3);
    EXPECT_EQ(world.of(2).failed, 3);
    EXPECT_TRUE(world.of(0).reporter);
    EXPECT_FALSE(world.of(2).reporter);
    return;
  }
  FAIL() << "the complaint never came just before the death";
}

TEST_P(LivenessTest, StoppedRankThatGoesOnAccusesNobodyElse) {
  WatchedWorld world(GetParam().world, kQuick, false);
  ASSERT_TRUE(world.wait_watching());
  world.signal_rank(2, SIGSTOP);
  ASSERT_TRUE(WatchedWorld::wait_for([&] { return world.of(0).calls > 0; }));
  EXPECT_EQ(world.of(0).failed, 2);
  world.signal_rank(2, SIGCONT);
  ASSERT_TRUE(WatchedWorld::wait_for([&] { return world.of(2).calls > 0; }));
  EXPECT_EQ(world.of(2).failed, 2);
  EXPECT_FALSE(world.of(2).reporter);
  std::this_thread::sleep_for(300ms);
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(world.of(rank).calls, 1) << rank;
}

TEST_P(LivenessTest, ShortStopIsNoFailure) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    WatchedWorld world(GetParam().world, kQuick);
    ASSERT_TRUE(world.wait_watching());
    auto begin = Clock::now();
    world.signal_rank(1, SIGSTOP);
    std::this_thread::sleep_for(600ms);
    world.signal_rank(1, SIGCONT);
    if (Clock::now() - begin > 1s) continue;  // this thread was held up itself
    std::this_thread::sleep_for(900ms);
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(world.of(rank).calls, 0) << world.of(rank).line;
    return;
  }
  FAIL() << "no stop was short";
}

TEST_P(LivenessTest, OrderlyLeaveIsNoFailure) {
  auto codes = run_ranks(GetParam().world, [](const HostWorld& world) {
    std::atomic<int> failures{0};
    auto liveness = Liveness::start({.world = world,
                                     .on_failure = [&](const RankFailure&) { ++failures; },
                                     .interval = kQuick.interval,
                                     .silence_limit = kQuick.silence});
    if (!liveness.ok()) return 1;
    // One after the other, each well before the next.
    std::this_thread::sleep_for(100ms + 300ms * world.rank);
    (*liveness)->leave();
    return failures == 0 ? 0 : 2;
  });
  EXPECT_EQ(codes, std::vector<int>(kRanks, 0));
}

TEST_P(LivenessTest, EndOfTheWatchWithoutLeaveIsAFailure) {
  TestWorld test = GetParam().world;
  test.processes = false;
  auto codes = run_ranks(test, [](const HostWorld& world) {
    std::atomic<int> failed{-1};
    auto liveness =
        Liveness::start({.world = world, .on_failure = [&](const RankFailure& f) { failed = f.rank; }});
    if (!liveness.ok()) return 1;
    if (world.rank == 1) return 0;
    bool known = WatchedWorld::wait_for([&] { return failed >= 0; });
    (*liveness)->leave();
    return known && failed == 1 ? 0 : 2;
  });
  EXPECT_EQ(codes, std::vector<int>(kRanks, 0));
}

INSTANTIATE_TEST_SUITE_P(Transports, LivenessTest, testing::ValuesIn(kTransports), [](const auto& transport) {
  return transport.param.name;
});

// With the limits that ship, every transport and victim at once.
TEST(LivenessLimits, StoppedRankIsKnownToAllWithinNineSeconds) {
  std::vector<std::pair<int, std::unique_ptr<WatchedWorld>>> worlds;
  std::vector<std::string> causes;
  for (const auto& transport : kTransports)
    for (int victim : {0, 1, kRanks - 1}) {
      worlds.emplace_back(victim, std::make_unique<WatchedWorld>(transport.world));
      causes.push_back(transport.name == std::string("memory") ? "stopped (SIGSTOP" : "no heartbeat for 6");
    }
  for (auto& [victim, world] : worlds) ASSERT_TRUE(world->wait_watching());
  for (auto& [victim, world] : worlds) world->signal_rank(victim, SIGSTOP);
  for (size_t i = 0; i < worlds.size(); ++i)
    worlds[i].second->expect_all_learn(worlds[i].first, 9, causes[i]);
}

// A host that goes down is told from a process that stops, and it is not chance which of its ranks is named.
TEST(LivenessLimits, HostThatFallsSilentIsNamedByItsLowestRank) {
  const TestWorld two_hosts{.size = kRanks, .hosts = {"a", "a", "b", "b"}};
  for (bool lowest_first : {false, true}) {
    WatchedWorld world(two_hosts, kQuick);
    ASSERT_TRUE(world.wait_watching());
    world.signal_rank(lowest_first ? 2 : 3, SIGSTOP);
    std::this_thread::sleep_for(kQuick.interval);
    world.signal_rank(lowest_first ? 3 : 2, SIGSTOP);
    for (int rank : {0, 1}) {
      ASSERT_EQ(world.wait_exit(rank), kFailedExit);
      EXPECT_EQ(world.of(rank).failed, 2);
      EXPECT_STREQ(world.of(rank).phase, "phase of 2");
      EXPECT_NE(std::string(world.of(rank).cause).find("from any of the 2 ranks of its host"),
                std::string::npos)
          << world.of(rank).cause;
    }
  }
}

TEST(LivenessLimits, StoppedProcessOfAHostThatIsHeardIsNotTakenForTheHost) {
  WatchedWorld world({.size = kRanks, .hosts = {"a", "a", "b", "b"}}, kQuick);
  ASSERT_TRUE(world.wait_watching());
  world.signal_rank(3, SIGSTOP);
  ASSERT_EQ(world.wait_exit(0), kFailedExit);
  EXPECT_EQ(world.of(0).failed, 3);
  EXPECT_NE(std::string(world.of(0).cause).find("its process is stopped"), std::string::npos);
  EXPECT_EQ(std::string(world.of(0).cause).find("network"), std::string::npos) << world.of(0).cause;
}

TEST(LivenessAlone, OneRankReportsItself) {
  std::atomic<int> reports{0};
  auto liveness = Liveness::start(
      {.world = {.hosts = {"here"}}, .on_failure = [&](const RankFailure& f) { reports += f.reporter; }});
  ASSERT_TRUE(liveness.ok());
  (*liveness)->announce_failure("out of memory");
  EXPECT_TRUE(WatchedWorld::wait_for([&] { return reports == 1; }));
  (*liveness)->leave();
}

TEST(ProcessWatchTest, TellsRunningStoppedZombieAndReusedPids) {
  pid_t pid = fork_rank([] {
    while (true) ::pause();
    return 0;
  });
  ProcessId id = current_process();
  EXPECT_EQ(ProcessWatch(id).state(), ProcessState::kRunning);
  id.pid = pid;
  // Another start time: the pid has passed to another process.
  id.start_ticks += 1;
  EXPECT_EQ(ProcessWatch(id).state(), ProcessState::kGone);
  ::kill(pid, SIGKILL);
  wait_rank(pid);
  EXPECT_EQ(ProcessWatch(id).state(), ProcessState::kGone);
  id.pid_namespace += 1;
  EXPECT_EQ(ProcessWatch(id).state(), ProcessState::kUnknown);

  // A stopped child, then a zombie: dead, though its parent has not fetched it.
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  pid_t child = fork_rank([&] {
    ProcessId own = current_process();
    if (::write(pipe_fds[1], &own, sizeof(own)) != sizeof(own)) return 1;
    while (true) ::pause();
    return 0;
  });
  ProcessId child_id;
  ASSERT_EQ(::read(pipe_fds[0], &child_id, sizeof(child_id)), static_cast<ssize_t>(sizeof(child_id)));
  ProcessWatch watch(child_id);
  ::kill(child, SIGSTOP);
  EXPECT_TRUE(WatchedWorld::wait_for([&] { return watch.state() == ProcessState::kStopped; }));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(WatchedWorld::wait_for([&] { return watch.state() == ProcessState::kGone; }));
  EXPECT_EQ(wait_rank(child), 128 + SIGKILL);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

}  // namespace
}  // namespace llm_dist::comm
