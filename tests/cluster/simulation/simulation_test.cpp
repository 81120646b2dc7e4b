// Seeds of the simulation. LLM_DIST_SIMULATION_SEEDS=17 replays one and prints its history, =1-1000 runs a
// range; LLM_DIST_FULL runs 10,000 on every core.
#include "tests/cluster/simulation/simulation.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "src/base/check.h"
#include "src/base/log.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster::simulation {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 100;
#else
constexpr uint64_t kSeeds = 500;
#endif
constexpr uint64_t kFullSeeds = 10'000;
constexpr uint64_t kMutantSeeds = 400;

struct Range {
  uint64_t first = 1;
  uint64_t last = 1;
};

Range seeds() {
  if (const char* text = std::getenv("LLM_DIST_SIMULATION_SEEDS")) {
    char* end = nullptr;
    uint64_t first = std::strtoull(text, &end, 10);
    return {first, *end == '-' ? std::strtoull(end + 1, nullptr, 10) : first};
  }
  return {1, std::getenv("LLM_DIST_FULL") != nullptr ? kFullSeeds : kSeeds};
}

class Simulation : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "one thread with many stacks: not for ThreadSanitizer";
#endif
    // What the coordinator complains of are the faults that it was given.
    set_log_level(LogLevel::kNothing);
  }
  SimulationResult simulated(uint64_t seed, Mutant mutant = Mutant::kNone, bool keeps_history = false) {
    set_process_identity(format("seed {}", seed));  // for a CHECK that fails
    std::string folder = folder_.file(std::to_string(getpid()));
    return simulate({.seed = seed, .mutant = mutant, .keeps_history = keeps_history}, folder);
  }
  void show(uint64_t seed) {
    SimulationResult again = simulated(seed, Mutant::kNone, true);
    for (const std::string& line : again.history) printf("%s\n", line.c_str());
    for (const std::string& what : again.violations) ADD_FAILURE() << "seed " << seed << ": " << what;
  }
  // The first that finds something; 0: none does.
  uint64_t first_failing(Range range, SimulationResult& sum) {
    for (uint64_t seed = range.first; seed <= range.last; ++seed) {
      SimulationResult result = simulated(seed);
      if (!result.violations.empty()) return seed;
      sum.num_acknowledged += result.num_acknowledged;
      sum.num_crashes += result.num_crashes;
      sum.num_launches += result.num_launches;
      sum.num_items += result.num_items;
      sum.num_ended += result.num_ended;
    }
    return 0;
  }
  uint64_t first_failing_on_all_cores(Range range);

  testing::TemporaryFolder folder_;
};

// Where a process stands, for the one that waits for it.
struct Progress {
  uint64_t seed;
  uint64_t failing;
};

// SQLite's chance belongs to the process: a process a core.
uint64_t Simulation::first_failing_on_all_cores(Range range) {
  uint64_t num_processes = std::max(1u, std::thread::hardware_concurrency());
  void* memory = mmap(
      nullptr, num_processes * sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* progress = static_cast<volatile Progress*>(memory);
  std::vector<pid_t> processes;
  for (uint64_t i = 0; i < num_processes; ++i) {
    processes.push_back(fork());
    if (processes.back() != 0) continue;
    for (uint64_t seed = range.first + i; seed <= range.last && progress[i].failing == 0;
         seed += num_processes) {
      progress[i].seed = seed;
      if (!simulated(seed).violations.empty()) progress[i].failing = seed;
    }
    _exit(0);
  }
  uint64_t found = 0;
  for (uint64_t i = 0; i < num_processes; ++i) {
    int status = 0;
    EXPECT_EQ(waitpid(processes[i], &status, 0), processes[i]);
    EXPECT_EQ(status, 0) << "seed " << progress[i].seed << " ended the program";
    uint64_t failing = progress[i].failing;
    if (failing != 0 && (found == 0 || failing < found)) found = failing;
  }
  munmap(memory, num_processes * sizeof(Progress));
  return found;
}

TEST_F(Simulation, KeepsEveryPromise) {
  Range range = seeds();
  if (range.first == range.last) return show(range.first);
  if (range.last - range.first >= kFullSeeds - 1) {
    uint64_t failing = first_failing_on_all_cores(range);
    if (failing != 0) show(failing);
    return;
  }
  SimulationResult sum;
  uint64_t failing = first_failing(range, sum);
  if (failing != 0) return show(failing);
  auto num_seeds = static_cast<int>(range.last - range.first + 1);
  printf("%d seeds: %d jobs acknowledged, %d ended, %d launches, %d items recorded, %d crashes\n",
         num_seeds,
         sum.num_acknowledged,
         sum.num_ended,
         sum.num_launches,
         sum.num_items,
         sum.num_crashes);
  EXPECT_GT(sum.num_acknowledged, 2 * num_seeds) << "runs that promise nothing prove nothing";
  EXPECT_GT(sum.num_items, num_seeds);
  EXPECT_GT(sum.num_launches, 2 * num_seeds);
  EXPECT_GT(sum.num_crashes, num_seeds / 4);
}

TEST_F(Simulation, TheSameSeedIsTheSameHistory) {
  size_t num_lines = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::vector<std::string> first = simulated(seed, Mutant::kNone, true).history;
    num_lines += first.size();
    (void)simulated(seed + 100);
    EXPECT_EQ(simulated(seed, Mutant::kNone, true).history, first) << "seed " << seed;
  }
  EXPECT_GT(num_lines, 200u);
}

struct Lack {
  Mutant mutant;
  const char* name;
};

class SimulationOfMutant : public Simulation, public ::testing::WithParamInterface<Lack> {};

TEST_P(SimulationOfMutant, IsFound) {
  for (uint64_t seed = 1; seed <= kMutantSeeds; ++seed) {
    SimulationResult result = simulated(seed, GetParam().mutant);
    if (result.violations.empty()) continue;
    printf("seed %d: %s\n", static_cast<int>(seed), result.violations[0].c_str());
    return;
  }
  ADD_FAILURE() << kMutantSeeds << " seeds find nothing";
}

INSTANTIATE_TEST_SUITE_P(Lacks,
                         SimulationOfMutant,
                         ::testing::Values(Lack{Mutant::kLyingDisk, "ASync"},
                                           Lack{Mutant::kNoIdempotency, "TheIdempotencyCheck"},
                                           Lack{Mutant::kNoEpochCheck, "TheEpochCheck"},
                                           Lack{Mutant::kNoAttemptCheck, "TheAttemptCheck"},
                                           Lack{Mutant::kForgetsToAdopt, "Adoption"},
                                           Lack{Mutant::kLaunchesTwice, "TheEndOfAnInterruptedLaunch"},
                                           Lack{Mutant::kTakesDoubtForDeath, "Doubt"},
                                           Lack{Mutant::kCountsTooFewSlots, "ASlot"}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace llm_dist::cluster::simulation
