// What is asked of replicas: a thread asks each one's /livez, and tells those that are to end so. The replica
// itself knows whether its steps make progress.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cluster/store/job.h"
#include "src/base/clock.h"

namespace llm_dist::cluster {

class ReplicaWatch {
 public:
  virtual ~ReplicaWatch() = default;
  // Begins to ask.
  virtual void watch(const ReplicaAttempt& replica, const std::string& endpoint) = 0;
  virtual void forget(const ReplicaAttempt& replica) = 0;
  // From the first to the last of the probes that failed in a row; 0 when the last one did not. What this
  // process itself lacked to ask is no failure of a replica.
  virtual int64_t failing_us(const ReplicaAttempt& replica) = 0;
  // Tells one that is watched, until it has heard, to take no more requests and to end once those that it has
  // are answered.
  virtual void drain(const ReplicaAttempt& replica, const std::string& api_key) = 0;
};

// Every replica each `period`; an answer may take `timeout`.
std::unique_ptr<ReplicaWatch> make_http_watch(Duration period = std::chrono::seconds(1),
                                              Duration timeout = std::chrono::seconds(2));

}  // namespace llm_dist::cluster
