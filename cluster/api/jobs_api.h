// The jobs API: /v1/jobs and what stands below it.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "cluster/api/access.h"
#include "cluster/api/event_feed.h"
#include "cluster/api/job_actions.h"
#include "cluster/api/workers.h"
#include "cluster/attempt_plan.h"
#include "cluster/catalogue.h"
#include "cluster/clock.h"
#include "cluster/store/group_commit.h"
#include "src/http/router.h"

namespace llm_dist::cluster {

class JobsApi {
 public:
  struct Parts {
    Store& store;
    GroupCommit& commit;
    EventFeed& feed;
    Workers& workers;
    const Catalogue& catalogue;
    const AttemptSecrets& secrets;
    const Access& access;
    std::string attempts_folder{};  // where attempts keep their logs
    WallClock now_us = system_time_us;
  };
  explicit JobsApi(Parts parts) : parts_(std::move(parts)) {}

  void add_routes(http::Router& router);

 private:
  // A submission whose commit is under way.
  using InFlight = std::pair<std::string, std::string>;  // project, key

  void submit(const http::Request& request, const WriterPtr& writer);
  void submit(SubmitJob job, const WriterPtr& writer);
  void refuse(const std::string& project,
              const IdempotencyKey& asked,
              const http::ApiError& error,
              const WriterPtr& writer);
  // On the commit thread.
  void answer_submission(const Job& submitted, const Outcome& outcome, const WriterPtr& writer);
  void replay_submission(JobId id, const WriterPtr& writer);
  void list(const http::Request& request, const WriterPtr& writer);
  void get(const http::Request& request, const WriterPtr& writer);
  void events(const http::Request& request, const WriterPtr& writer);
  void attempts(const http::Request& request, const WriterPtr& writer);
  void logs(const http::Request& request, const WriterPtr& writer);
  void act(JobAction action, const http::Request& request, const WriterPtr& writer);
  void retry(const http::Request& request, const WriterPtr& writer);

  Parts parts_;
  std::mutex mutex_;
  std::set<InFlight> in_flight_;
};

}  // namespace llm_dist::cluster
