// GET /v1/overview: the jobs by state, the replicas with their load, and what they do together.
#pragma once

#include <string>

#include "cluster/api/event_feed.h"
#include "cluster/api/workers.h"
#include "cluster/clock.h"
#include "cluster/replica_loads.h"
#include "src/http/router.h"

namespace llm_dist::cluster {

class OverviewApi {
 public:
  struct Parts {
    Store& store;
    Workers& workers;
    const ReplicaLoads& loads;
    int num_slots = 0;
    std::string version{};
    WallClock now_us = system_time_us;
  };
  explicit OverviewApi(Parts parts) : parts_(std::move(parts)) {}
  void add_routes(http::Router& router);

 private:
  void show(const WriterPtr& writer) const;
  Result<std::string> render() const;
  Parts parts_;
};

}  // namespace llm_dist::cluster
