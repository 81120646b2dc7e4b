// Worlds of ranks for the host tests: threads of this process or forked processes, with an all-gather over
// memory that they share.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/host/host_world.h"
#include "src/base/clock.h"

namespace llm_dist::comm {

// For ranks in a process of their own, where a GoogleTest assertion would not be seen.
#define RANK_CHECK(condition)                                                          \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      std::fprintf(stderr, "rank %d line %d: %s\n", world.rank, __LINE__, #condition); \
      return 1;                                                                        \
    }                                                                                  \
  } while (false)

// Where ranks exchange bytes during setup. Lives in an anonymous shared mapping, made before the fork.
class GatherBoard {
 public:
  static constexpr int kMaxRanks = 8;
  static constexpr int kMaxRounds = 16;
  static constexpr size_t kMaxBytes = 1024;

  explicit GatherBoard(int size);
  ~GatherBoard();
  GatherBoard(const GatherBoard&) = delete;
  GatherBoard& operator=(const GatherBoard&) = delete;

  // A rank's own exchange; each call is the next round.
  AllGatherBytes exchange(int rank, double timeout_seconds = 60);
  // What `rank` brought to `round`; waits for it. For tests that eavesdrop.
  std::string brought(int round, int rank);

 private:
  struct Slot;
  Slot& slot(int round, int rank);

  int size_;
  Slot* slots_;
};

struct TestWorld {
  int size = 2;
  bool processes = true;           // or threads
  bool sockets = false;            // or shared memory
  std::vector<std::string> hosts;  // empty: all on one
};

using RankBody = std::function<int(const HostWorld&)>;

// Forks; the child ends with what `body` returns and never comes back.
pid_t fork_rank(const std::function<int()>& body);
// Waits for the end: the exit code, or 128 + signal; kills it and returns -1 after `timeout_seconds`.
int wait_rank(pid_t pid, double timeout_seconds = 120);

HostWorld host_world(const TestWorld& test, GatherBoard& board, int rank);
// Runs every rank to its end; their codes.
std::vector<int> run_ranks(const TestWorld& test, const RankBody& body);
// What they return when all is well.
inline std::vector<int> fine(int ranks) { return std::vector<int>(static_cast<size_t>(ranks), 0); }

// Longer than any machine is busy with something else.
inline Deadline soon() { return Deadline::after_seconds(60); }

}  // namespace llm_dist::comm
