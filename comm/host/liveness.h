// Liveness: every rank watches every other, so that a dead or stuck rank ends its world within seconds.
//
// A thread of its own beats once an interval, whatever the rank is doing. On a node, heartbeats and phases
// stand in shared memory and a process's end is seen at once; between nodes every pair of ranks holds a
// connection, so that nobody depends on rank 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/host/host_world.h"
#include "src/base/clock.h"
#include "src/base/status.h"

namespace llm_dist::comm {

struct RankFailure {
  int rank = 0;
  std::string host;
  int64_t pid = 0;
  std::string device;
  std::string phase;  // its last one
  std::string cause;
  int signal = 0;  // that somebody ended it with, as it said itself; 0: none
  // This rank is the lowest live one: it prints format_failure(), nobody else does.
  bool reporter = false;
};

// One line: "rank 3 failed: host a, pid 17, device cpu:0, phase decode: the process ended without a goodbye"
std::string format_failure(const RankFailure& failure);

struct LivenessOptions {
  HostWorld world;
  // Called once, on the thread that watches; the Liveness is not to be destroyed in it. A rank that
  // announced a failure or is taken for dead (it was stopped, and goes on) gets it too, with its own rank.
  std::function<void(const RankFailure&)> on_failure;
  Duration interval = std::chrono::seconds(1);
  Duration silence_limit = std::chrono::seconds(6);
  // From the first sign to the verdict: a rank that dies takes others' calls down with it, and they may be
  // heard first.
  Duration settle = std::chrono::milliseconds(150);
};

class LivenessWatch;

class Liveness {
 public:
  // Collective: every rank of the world calls it; all succeed or all fail.
  static Result<std::unique_ptr<Liveness>> start(const LivenessOptions& options);
  // Without leave(), the others take it for this rank's death.
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  // Every rank's, for the diagnosis: "cuda:0". They are known only once each has chosen; until then a failed
  // rank's is empty. Any thread.
  void set_devices(std::vector<std::string> devices);
  // "loading", "idle", "prefill", "decode"…; cut to 31 bytes. Any thread; allocates nothing.
  void set_phase(std::string_view phase);
  // This rank cannot go on, and the others learn why without waiting for its end: 239 bytes of it. `signal`:
  // the one that somebody ended it with. Any thread. They know when it returns, so that the process may end
  // at once.
  void announce_failure(std::string_view cause, int signal = 0);
  // An orderly goodbye: from now on this rank watches nobody and nobody misses it.
  void leave();

 private:
  explicit Liveness(std::unique_ptr<LivenessWatch> watch);
  std::unique_ptr<LivenessWatch> watch_;
};

}  // namespace llm_dist::comm
