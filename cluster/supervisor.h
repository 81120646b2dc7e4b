// Supervisor: starts what waits, watches what runs, restarts what fails, ends what is to end. It holds no
// state that the store does not: each tick reads the store, looks at the processes and writes down what
// follows before it acts on it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "cluster/attempt_plan.h"
#include "cluster/catalogue.h"
#include "cluster/clock.h"
#include "cluster/launcher.h"
#include "cluster/quota.h"
#include "cluster/replica_watch.h"
#include "cluster/store/store.h"

namespace llm_dist::cluster {

struct SupervisorOptions {
  int max_attempts = 3;             // of a bench
  int max_quick_failures = 8;       // of a replica in a row, each before `stable_us`
  int64_t stable_us = 300'000'000;  // what registered and lived longer starts counting anew
  int64_t backoff_us = 1'000'000;   // before the second attempt; doubles
  int64_t max_backoff_us = 60'000'000;
  int64_t start_timeout_us = 1'800'000'000;  // to registration, from the launch or when this process found it
  int64_t unresponsive_us = 10'000'000;      // of failed probes; the replica's own stall rule comes first
  int drain_seconds = 30;                    // for the open requests of a replica that is to end
  int64_t kill_after_us = 15'000'000;        // from the polite request to the other
};

// How long to wait before the attempt after `num_failures` (at least 1): doubling, with a jitter of ±20 %
// that is the same each time it is asked.
int64_t backoff_us(const SupervisorOptions& options, JobId job, int num_failures);

class Supervisor {
 public:
  // Durable when it returns.
  using Commit = std::function<Outcome(CommandBody)>;
  struct Parts {
    Store& store;
    Commit commit;
    Launcher& launcher;
    ReplicaWatch& watch;
    const Catalogue& catalogue;
    AttemptPlaces places;
    AttemptSecrets secrets;
    WallClock now_us = system_time_us;
    SteadyClock steady_now = Clock::now;
    SupervisorOptions options{};
  };
  explicit Supervisor(Parts parts) : parts_(std::move(parts)) {}

  // One look at everything. Never waits for a process; an error of the store ends the tick and is returned.
  Status tick();

 private:
  // How far the end of an attempt has come.
  enum class Ending : uint8_t { kNone, kDrained, kTerminated, kKilled };
  // What is known of an attempt besides what is written: lost with this process, and then found again.
  struct Live {
    int64_t attempt = 0;
    TimePoint since{};      // when it was launched, or found
    std::string endpoint;   // watched; empty: none yet
    std::string why{};      // it is being stopped, for a reason of ours
    bool in_doubt = false;  // whether it lives could not be told at the last look
    Ending ending = Ending::kNone;
    TimePoint ending_since{};
  };

  Status look_after(const Job& job, Queue& queue);
  Status look_after_attempt(const Job& job, const Attempt& attempt);
  std::optional<std::string> why_to_stop(const Job& job, const Attempt& attempt);
  Status stop(const Attempt& attempt, Live& live, const std::string& why);
  Status begin_end(const Attempt& attempt, Live& live, Ending ending);
  Result<int> sweep(const Attempt& attempt);
  // As it was at the last look, or one that begins now.
  Live& live_of(JobId job, int64_t attempt);
  int64_t passed_us(TimePoint since) const;
  Status look_again(const Attempt& attempt, const Status& why);
  Status attempt_lost(const Job& job, const Attempt& attempt);
  Status attempt_ended(const Job& job, const Attempt& attempt, const Observation& seen);
  Status end_attempt(const Job& job, ChangeJob change, const std::string& why);
  Status settle(const Job& job, ChangeJob change, const std::string& why);
  Status settle_failure(const Job& job, ChangeJob change, const std::string& why);
  Status finish(const Job& job);
  Status end_resting(const Job& job);
  Status expire_waiting();
  Status start_recovering(const Job& job, Queue& queue);
  Status start_waiting(Queue& queue);
  Status start(const Job& job, const std::vector<int>& slots);
  Status launch_failed(JobId id, int64_t number, const Status& why);
  Result<bool> start_if_room(const Job& job, Queue& queue);
  Status write(ChangeJob change);
  int quick_failures(const Job& job, const std::vector<Attempt>& attempts) const;
  void forget(JobId job);

  Parts parts_;
  std::map<JobId, Live> live_;
};

}  // namespace llm_dist::cluster
