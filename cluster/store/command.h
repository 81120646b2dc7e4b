// What changes the store. A command is checked and carried out by the store alone; its outcome is an id and a
// version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cluster/store/batch_commands.h"
#include "cluster/store/job.h"

namespace llm_dist::cluster {

// A client's promise that two requests are one. Empty: none given.
struct IdempotencyKey {
  std::string key{};
  std::string body_hash{};  // of everything that the answer depends on
};

// A new job in state QUEUED. The same key and hash again: the job that was made then, `replayed`; the same
// key with another hash: invalid_argument. Where more jobs of its project would wait than `max_queued` allows
// nothing is made, and the outcome's id is 0.
struct SubmitJob {
  std::string project;
  JobKind kind = JobKind::kServe;
  std::string spec;
  int priority = 0;
  int64_t expires_us = 0;
  JobId retry_of = 0;
  IdempotencyKey idempotency{};
  std::optional<NewBatch> batch{};  // of a batch_inference job
  int max_queued = 0;               // jobs of the project in state QUEUED; 0: any number
};

// The parts of an attempt that change; what is absent stays.
struct AttemptChange {
  std::optional<AttemptState> state{};
  std::optional<std::string> handle{};
  std::optional<std::string> endpoint{};
  std::optional<std::string> reason{};
  std::optional<int> exit_code{};
};

// One change of a job, and with it of the attempt that it is about, which makes one event.
struct ChangeJob {
  JobId job = 0;
  int64_t expected_version = 0;  // 0: whatever it is
  int64_t attempt = 0;           // the attempt that the writer speaks for; 0: it speaks for no attempt
  JobState to = JobState::kQueued;
  Intent intent = Intent::kNone;
  std::string reason{};
  std::string message{};
  std::optional<AttemptChange> attempt_change{};
};

// RECOVERING or QUEUED to STARTING, with a new attempt that counts one up.
struct StartAttempt {
  JobId job = 0;
  int64_t expected_version = 0;
  std::string launcher{};
  std::string secret_hash{};
  int slots = 0;
  std::vector<int> slot_numbers{};  // failed_precondition: another attempt holds one of them
};

// A change of an attempt that is not one of its job: where it can be found, where it serves.
struct ChangeAttempt {
  JobId job = 0;
  int64_t attempt = 0;
  AttemptChange change{};
};

// A job that has ended, with all that belongs to it but files. Large batches go piece by piece: the outcome's
// version is 0 once nothing is left. failed_precondition: it has not ended, or its batch is not closed.
struct RemoveJob {
  JobId job = 0;
};

using CommandBody = std::variant<SubmitJob,
                                 ChangeJob,
                                 StartAttempt,
                                 ChangeAttempt,
                                 AddFile,
                                 DeleteFile,
                                 RecordItem,
                                 CountDeaths,
                                 CloseBatch,
                                 RemoveJob>;
// Whether its outcome is about a job that others may wait for.
bool changes_a_job(const CommandBody& body);

struct Command {
  int64_t epoch = 0;  // of the coordinator that issues it: an older one's command is `aborted`
  int64_t at_us = 0;  // wall clock, microseconds since 1970
  CommandBody body;
};

struct Written {
  int64_t id = 0;       // of the job, or of the file; 0: see SubmitJob
  int64_t version = 0;  // of the job's row
  bool replayed = false;
};

// not_found: no such job, attempt or file; failed_precondition: another version, a transition that may not
// happen, a job or attempt that has ended, an attempt that is no longer the current one; invalid_argument:
// see SubmitJob; aborted: a newer coordinator owns the store; resource_exhausted: the disk is full;
// unavailable: nothing was written, try again.
using Outcome = Result<Written>;

}  // namespace llm_dist::cluster
