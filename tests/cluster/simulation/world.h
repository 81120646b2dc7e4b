// World: what all parts of a simulation share: its fibers, its faults, its history and what was found wrong.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/base/format.h"
#include "tests/cluster/simulation/fibers.h"

namespace llm_dist::cluster::simulation {

// A coordinator with something taken out: the checks must find it.
enum class Mutant : uint8_t {
  kNone,
  kLyingDisk,           // a sync does nothing
  kNoIdempotency,       // a key is not looked up
  kNoEpochCheck,        // what an older coordinator still has to say is carried out
  kNoAttemptCheck,      // and what speaks for an older attempt
  kForgetsToAdopt,      // what an older coordinator started is not looked after
  kLaunchesTwice,       // an interrupted launch is not ended before the next
  kTakesDoubtForDeath,  // what cannot be looked at is taken for ended
  kCountsTooFewSlots    // as used
};

enum class Crash : uint8_t {
  kProcess,  // the coordinator is killed: the machine goes on, and so does what the kernel has of its files
  kPower     // the machine stops: what was not synced may be lost, and every process ends
};

struct SimulationOptions {
  uint64_t seed = 1;
  Mutant mutant = Mutant::kNone;
  bool keeps_history = false;
};

struct SimulationResult {
  std::vector<std::string> violations;
  std::vector<std::string> history;
  // That a run did something.
  int num_acknowledged = 0;
  int num_crashes = 0;
  int num_launches = 0;
  int num_items = 0;
  int num_ended = 0;
};

class World {
 public:
  explicit World(const SimulationOptions& given)
      : options(given), fibers(std::make_shared<Fibers>(given.seed)) {}

  int64_t now_us() const {
    constexpr int64_t kBegin = 1'700'000'000'000'000;
    return kBegin +
           std::chrono::duration_cast<std::chrono::microseconds>(fibers->now().time_since_epoch()).count();
  }
  template <typename... Args>
  void note(std::string_view pattern, const Args&... args) {
    if (!options.keeps_history) return;
    int64_t ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(fibers->now().time_since_epoch()).count() -
        3'600'000;
    std::string fraction = std::to_string(1000 + ms % 1000).substr(1);
    result.history.push_back(format("{}.{} {}", ms / 1000, fraction, format(pattern, args...)));
  }
  void violate(const std::string& what) {
    note("VIOLATION {}", what);
    result.violations.push_back(what);
  }
  bool failed() const { return !result.violations.empty(); }
  // Whether a fault of this probability happens now.
  bool fault(double probability) { return chaos && fibers->chance(probability); }
  // An await of the coordinator: others may go on, and it may be the last that it does.
  void await(Duration longest = {}) {
    if (may_crash && fault(crash_at_await)) crash = fibers->chance(0.5) ? Crash::kPower : Crash::kProcess;
    // Now and then a thread is held up for long.
    if (fault(0.003)) longest = std::chrono::seconds(15);
    fibers->sleep(longest == Duration::zero() ? longest : fibers->between(0, seconds_of(longest)));
  }
  static double seconds_of(Duration time) { return std::chrono::duration<double>(time).count(); }

  const SimulationOptions options;
  const std::shared_ptr<Fibers> fibers;
  SimulationResult result;
  bool chaos = true;      // faults happen
  bool may_crash = true;  // the coordinator, at its awaits
  double crash_at_await = 0;
  std::set<std::string> recorded;  // items, by their prompts: not executed again
  std::optional<Crash> crash;      // asked for: carried out before any other fiber goes on
};

}  // namespace llm_dist::cluster::simulation
