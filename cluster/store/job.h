// What the coordinator keeps: jobs, their attempts and their events. Plain data and the table of transitions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::cluster {

enum class JobState : uint8_t {
  kQueued,      // waits for slots
  kStarting,    // an attempt is being launched
  kRunning,     // its replica serves, its batch advances, its measurement runs
  kSuspended,   // holds no slots until it is resumed
  kRecovering,  // an attempt failed; the next one waits for its back-off
  kCancelling,  // asked to end; its processes are still being stopped
  kFinalizing,  // the work is done; results are being written
  kSucceeded,
  kFailed,
  kCancelled,
  kExpired,
};
inline constexpr int kNumJobStates = 11;

std::string_view to_string(JobState state);  // "QUEUED"
Result<JobState> parse_job_state(std::string_view name);
bool is_terminal(JobState state);

struct Transition {
  JobState from;
  JobState to;
};
// Every change of state that may happen. The database holds the same table.
std::span<const Transition> transitions();
bool may_become(JobState from, JobState to);

enum class JobKind : uint8_t { kServe, kBatchInference, kBench };
std::string_view to_string(JobKind kind);  // "batch_inference"
Result<JobKind> parse_job_kind(std::string_view name);

// What was asked of a job while an attempt holds it: the attempt ends first.
enum class Intent : uint8_t { kNone, kSuspend };
std::string_view to_string(Intent intent);  // "" or "suspend"

// "job-17" and back; ids count upwards and are never used twice.
using JobId = int64_t;
std::string job_name(JobId id);
Result<JobId> parse_job_name(std::string_view name);

struct Job {
  JobId id = 0;
  std::string project{};
  JobKind kind = JobKind::kServe;
  std::string spec{};  // JSON object, as the API checked it
  int priority = 0;    // higher runs first
  JobState state = JobState::kQueued;
  Intent intent = Intent::kNone;
  std::string reason{};   // for programs: "cancelled_by_user"
  std::string message{};  // for people
  int64_t version = 1;    // of this row; also the number of its last event
  int64_t attempt = 0;    // the current attempt, from 1; 0 before the first
  JobId retry_of = 0;     // the job that this one repeats
  JobId replica_of =
      0;  // the batch whose items it takes, besides that one's own replica; it follows that job
  int64_t created_us = 0;
  int64_t updated_us = 0;
  int64_t expires_us = 0;  // 0: never
  int64_t epoch = 0;       // of the coordinator that wrote this row last
};

// One row for each change of a job, numbered 1, 2, 3… without gaps within the job.
struct Event {
  JobId job = 0;
  int64_t number = 0;
  std::optional<JobState> from{};  // absent in the first
  JobState to = JobState::kQueued;
  Intent intent = Intent::kNone;
  std::string reason{};
  std::string message{};
  int64_t attempt = 0;
  int64_t at_us = 0;
  int64_t epoch = 0;
};

enum class AttemptState : uint8_t { kStarting, kRunning, kEnded };
std::string_view to_string(AttemptState state);  // "starting"

// One launch of a job's processes.
struct Attempt {
  JobId job = 0;
  int64_t number = 0;
  AttemptState state = AttemptState::kStarting;
  std::string launcher{};     // "local"
  std::string handle{};       // what the launcher needs to find it again
  std::string endpoint{};     // URL of its replica, once registered
  std::string secret_hash{};  // of the one-time secret it registers with
  int slots = 0;
  std::vector<int> slot_numbers{};  // see Slots; empty: one that ended before slots had numbers
  std::string reason{};             // why it ended
  int exit_code = 0;
  int64_t started_us = 0;
  int64_t ended_us = 0;
  int64_t epoch = 0;
};

// Which attempt: an endpoint may be another attempt's a moment later.
struct ReplicaAttempt {
  JobId job = 0;
  int64_t number = 0;
  friend auto operator<=>(const ReplicaAttempt&, const ReplicaAttempt&) = default;
};

}  // namespace llm_dist::cluster
