// POST /v1/replicas: a replica says where it serves, proved by the secret that its attempt was started with.
#pragma once

#include "cluster/api/event_feed.h"
#include "cluster/api/workers.h"
#include "cluster/clock.h"
#include "cluster/store/group_commit.h"
#include "src/http/router.h"

namespace llm_dist::cluster {

class ReplicasApi {
 public:
  struct Parts {
    Store& store;
    GroupCommit& commit;
    Workers& workers;
    WallClock now_us = system_time_us;
  };
  explicit ReplicasApi(Parts parts) : parts_(std::move(parts)) {}
  void add_routes(http::Router& router);

 private:
  void enrol(const http::Request& request, const WriterPtr& writer);
  Parts parts_;
};

}  // namespace llm_dist::cluster
