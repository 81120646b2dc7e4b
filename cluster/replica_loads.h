// ReplicaLoads: how busy the replicas are, from their /metrics. Nothing of it is stored.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "cluster/attempt_plan.h"
#include "cluster/clock.h"
#include "cluster/store/store.h"
#include "src/base/clock.h"

namespace llm_dist::cluster {

// So many are asked and shown at most.
constexpr int kMaxReplicas = 1000;

// What one replica said last.
struct ReplicaLoad {
  int64_t at_us = 0;
  double requests_running = 0;
  double requests_waiting = 0;
  double kv_cache_usage = 0;  // 0 to 1
  double prompt_tokens = 0;   // since it started
  double generated_tokens = 0;
  std::optional<double> generated_per_second{};  // since the sample before, if there was one
};

// Of all replicas together, between two samples.
struct Throughput {
  int64_t at_us = 0;
  double prompt_per_second = 0;  // tokens
  double generated_per_second = 0;
};

// The sum of a metric over its labels, in Prometheus' text format; nothing: it is not there.
std::optional<double> metric_sum(std::string_view text, std::string_view name);

// One thread samples; any may ask.
class ReplicaLoads {
 public:
  struct Parts {
    Store& store;
    const AttemptSecrets& secrets;
    WallClock now_us = system_time_us;
    Duration timeout = std::chrono::seconds(1);  // of one sample, for all replicas together
    size_t max_history = 150;
  };
  explicit ReplicaLoads(Parts parts) : parts_(std::move(parts)) {}

  // Asks every replica that serves. One that does not answer has no load until it does.
  Status sample();
  std::optional<ReplicaLoad> of(JobId job, int64_t attempt) const;
  std::vector<Throughput> history() const;  // oldest first

 private:
  using Key = std::pair<JobId, int64_t>;  // job, attempt
  using Loads = std::map<Key, ReplicaLoad>;
  Result<Loads> ask_all() const;

  Parts parts_;
  mutable std::mutex mutex_;
  Loads loads_;                     // under mutex_
  std::deque<Throughput> history_;  // under mutex_
};

}  // namespace llm_dist::cluster
