// Retention: removes what is left of jobs that ended long ago, so that the store and its folders do not grow
// for ever. Files stay until they are deleted.
#pragma once

#include <functional>
#include <string>

#include "cluster/clock.h"
#include "cluster/store/store.h"

namespace llm_dist::cluster {

class Retention {
 public:
  struct Parts {
    Store& store;
    std::function<Outcome(CommandBody)> commit;  // durable when it returns
    std::string attempts_folder{};               // where attempts keep their logs
    int64_t keep_us = 0;                         // from a job's end; 0: for ever
    WallClock now_us = system_time_us;
  };
  explicit Retention(Parts parts) : parts_(std::move(parts)) {}

  // Removes some of it. True: there may be more. An error ends it; what was not removed is found again.
  Result<bool> tick();

 private:
  Status remove(JobId job);

  Parts parts_;
};

}  // namespace llm_dist::cluster
