#include "tests/comm/host_test_world.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "src/base/check.h"
#include "src/base/clock.h"

namespace llm_dist::comm {

struct GatherBoard::Slot {
  std::atomic<int> ready{0};
  size_t bytes = 0;
  char data[kMaxBytes];
};

GatherBoard::GatherBoard(int size) : size_(size) {
  CHECK_LE(size, kMaxRanks);
  void* base = ::mmap(nullptr,
                      sizeof(Slot) * kMaxRanks * kMaxRounds,
                      PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS,
                      -1,
                      0);
  CHECK(base != MAP_FAILED);
  slots_ = static_cast<Slot*>(base);
}

GatherBoard::~GatherBoard() { ::munmap(slots_, sizeof(Slot) * kMaxRanks * kMaxRounds); }

GatherBoard::Slot& GatherBoard::slot(int round, int rank) { return slots_[round * kMaxRanks + rank]; }

AllGatherBytes GatherBoard::exchange(int rank, double timeout_seconds) {
  auto round = std::make_shared<int>(0);
  return [this, rank, round, timeout_seconds](const std::string& mine) -> Result<std::vector<std::string>> {
    CHECK(*round < kMaxRounds && mine.size() <= kMaxBytes, "{} bytes in round {}", mine.size(), *round);
    Slot& own = slot(*round, rank);
    std::memcpy(own.data, mine.data(), mine.size());
    own.bytes = mine.size();
    own.ready.store(1, std::memory_order_release);
    std::vector<std::string> all;
    auto deadline = Deadline::after_seconds(timeout_seconds);
    for (int peer = 0; peer < size_; ++peer) {
      Slot& theirs = slot(*round, peer);
      while (theirs.ready.load(std::memory_order_acquire) == 0) {
        if (deadline.expired()) return deadline_exceeded(format("rank {} did not come", peer));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      all.emplace_back(theirs.data, theirs.bytes);
    }
    ++*round;
    return all;
  };
}

std::string GatherBoard::brought(int round, int rank) {
  Slot& theirs = slot(round, rank);
  while (theirs.ready.load(std::memory_order_acquire) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return {theirs.data, theirs.bytes};
}

pid_t fork_rank(const std::function<int()>& body) {
  pid_t pid = ::fork();
  CHECK(pid >= 0);
  if (pid == 0) ::_exit(body());
  return pid;
}

int wait_rank(pid_t pid, double timeout_seconds) {
  auto deadline = Deadline::after_seconds(timeout_seconds);
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (deadline.expired()) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

HostWorld host_world(const TestWorld& test, GatherBoard& board, int rank) {
  HostWorld world{.rank = rank, .size = test.size, .hosts = test.hosts};
  if (world.hosts.empty()) world.hosts.assign(static_cast<size_t>(test.size), "one-host");
  world.all_gather = board.exchange(rank);
  world.force_sockets = test.sockets;
  world.setup_seconds = 60;
  return world;
}

namespace {

std::vector<int> run_processes(const TestWorld& test, GatherBoard& board, const RankBody& body) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < test.size; ++rank)
    pids.push_back(fork_rank([&] { return body(host_world(test, board, rank)); }));
  std::vector<int> codes;
  for (pid_t pid : pids) codes.push_back(wait_rank(pid));
  return codes;
}

std::vector<int> run_threads(const TestWorld& test, GatherBoard& board, const RankBody& body) {
  std::vector<int> codes(static_cast<size_t>(test.size), -1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < test.size; ++rank)
    threads.emplace_back(
        [&, rank] { codes[static_cast<size_t>(rank)] = body(host_world(test, board, rank)); });
  for (auto& thread : threads) thread.join();
  return codes;
}

}  // namespace

std::vector<int> run_ranks(const TestWorld& test, const RankBody& body) {
  GatherBoard board(test.size);
  return test.processes ? run_processes(test, board, body) : run_threads(test, board, body);
}

}  // namespace llm_dist::comm
