// Clients: who asks the coordinator of a simulation, over a network that loses answers.
#pragma once

#include <functional>
#include <string>

#include "tests/cluster/simulation/coordinator_life.h"

namespace llm_dist::cluster::simulation {

class Clients {
 public:
  // Null while there is none.
  using Current = std::function<CoordinatorLife*()>;
  Clients(World& world, Ledger& ledger, Current current)
      : world_(world), ledger_(ledger), current_(std::move(current)) {}

  // One that does this and that until `end`, by a fiber.
  void live(TimePoint end);
  // Ends or resumes whatever would not end by itself; until the coordinator has heard.
  void close_everything();
  // Nothing: no answer.
  Reply send(http::Request request);
  // What came, head and all, until the answer was complete or `until`; nothing: no answer, or not all of it.
  std::optional<std::string> exchange(http::Request request, TimePoint until, bool& complete);

 private:
  struct Asked {
    int status = 0;
    JobId id = 0;
  };
  void do_something();
  void submit_job();
  void submit_batch();
  std::string upload(int64_t first, int64_t count);
  // Until there is an answer that says something.
  Reply insist(const http::Request& request, bool repeats);
  void submit(const http::Request& request, int64_t token, bool has_key);
  void retry(JobId job);
  void act(JobId job, const std::string& what);
  void look(JobId job);
  void follow(JobId job);
  std::optional<JobId> any_job();

  World& world_;
  Ledger& ledger_;
  Current current_;
  int64_t last_token_ = 0;
};

}  // namespace llm_dist::cluster::simulation
