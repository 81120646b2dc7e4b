// POST /v1/replicas: a replica says where it serves, proved by the secret that its attempt was started with.
#pragma once

#include <optional>
#include <string>

#include "cluster/api/event_feed.h"
#include "cluster/api/workers.h"
#include "cluster/clock.h"
#include "cluster/store/group_commit.h"
#include "src/http/router.h"

namespace llm_dist::cluster {

// What a replica says: for this attempt, whose secret it knows, it serves there.
struct Enrolment {
  JobId job = 0;
  int64_t attempt = 0;
  std::string secret;
  std::string endpoint;
};

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
  std::optional<http::Response> try_to_enrol(const Enrolment& enrolment);

  Parts parts_;
};

}  // namespace llm_dist::cluster
