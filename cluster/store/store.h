// Store: where the coordinator keeps what must outlive it. Several implementations pass the same tests.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/store/batch_store.h"
#include "cluster/store/command.h"
#include "cluster/store/job.h"
#include "src/base/status.h"

namespace llm_dist::cluster {

// A command on its way through the store.
struct Pending {
  Command command;
  Outcome outcome = unavailable("not carried out");
};

struct JobFilter {
  std::optional<std::string> project{};
  std::optional<JobKind> kind{};
  std::vector<JobState> states{};  // empty: all
  JobId before = 0;                // only ids below it; 0: from the newest
  int limit = 20;
};

// What is looked for by time.
enum class Overdue : uint8_t {
  kWaiting,  // QUEUED and SUSPENDED jobs that expired by then
  kEnded,    // jobs, with their batch closed, that ended before; those that did first come first
};

struct WaitingFilter {
  std::vector<std::string> without_projects{};
  JobId after = 0;  // only those behind it; 0: from the first
  int limit = 20;
};

// The answer that a request with an Idempotency-Key was given.
struct GivenAnswer {
  std::string body_hash;
  JobId job = 0;
};

// The slots of an attempt that has not ended: nothing else holds any.
struct HeldSlots {
  JobId job = 0;
  std::string project;
  int slots = 0;
  std::vector<int> slot_numbers{};
};

// What a project has of what is limited.
struct ProjectUsage {
  std::string project;
  int64_t num_queued = 0;
  int64_t num_running = 0;  // jobs that hold slots
  int64_t num_slots = 0;    // that they hold
};

struct JobCounts {
  std::array<int64_t, kNumJobStates> by_state{};
  int64_t of(JobState state) const { return by_state[static_cast<size_t>(state)]; }
};

// Thread-safe. Reads see only what is durable.
class Store {
 public:
  virtual ~Store() = default;

  // Counts up each time that a coordinator opens the store; commands must carry it.
  virtual int64_t epoch() const = 0;

  // Carries out the commands in order, all in one transaction and each by itself: one that fails leaves the
  // others alone. Durable when it returns. Every outcome is set and certain: if the commit's own outcome is
  // unknown it is looked up before this returns, again and again while the disk refuses even that. So this
  // blocks for as long as a broken disk stays broken: an answer that might be wrong is worse. The Status is
  // an error when nothing was written, and then every outcome is that error.
  virtual Status apply(std::span<Pending> batch) = 0;

  virtual Result<Job> job(JobId id) = 0;
  // Newest first.
  virtual Result<std::vector<Job>> jobs(const JobFilter& filter) = 0;
  // Those after number `after`, oldest first.
  virtual Result<std::vector<Event>> events(JobId job, int64_t after, int limit) = 0;
  virtual Result<std::vector<Attempt>> attempts(JobId job) = 0;
  virtual Result<JobCounts> counts() = 0;
  // QUEUED jobs in the order in which they should start: by priority, where ten minutes of waiting count as
  // much as one step of priority, so that nobody waits for ever.
  virtual Result<std::vector<Job>> waiting(const WaitingFilter& filter) = 0;
  // By job.
  virtual Result<std::vector<HeldSlots>> held_slots() = 0;
  // Those that have anything, by name.
  virtual Result<std::vector<ProjectUsage>> projects() = 0;
  // Nothing: no request of the project had this key.
  virtual Result<std::optional<GivenAnswer>> answer_to(const std::string& project,
                                                       const std::string& key) = 0;
  virtual Result<std::vector<Job>> overdue(Overdue what, int64_t at_us, int limit) = 0;
  // The same store, asked for files and batches.
  virtual BatchStore& batches() = 0;
};

}  // namespace llm_dist::cluster
