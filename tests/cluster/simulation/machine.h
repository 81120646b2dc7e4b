// Machine: the launcher of a simulation, its processes and the network to them. It outlives coordinators.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/item_client.h"
#include "cluster/launcher.h"
#include "cluster/replica_watch.h"
#include "cluster/store/job.h"
#include "src/http/message.h"
#include "tests/cluster/simulation/world.h"

namespace llm_dist::cluster::simulation {

inline constexpr int kNumSlots = 4;

// What became of a request; nothing: the answer was lost.
using Reply = std::optional<http::Response>;

class Machine : public Launcher {
 public:
  struct Process {
    int number = 0;
    LaunchRequest request;
    JobId job = 0;
    int64_t attempt = 0;
    bool keeper = true;  // lives, and so the process is seen as running
    bool ranks = true;   // live
    std::optional<int> exit_code{};
    std::string url{};
    std::optional<TimePoint> hung_since{};
    bool draining = false;
    bool deaf = false;                 // to drains and polite signals
    int num_open = 0;                  // requests that it works on
    std::set<std::string> answered{};  // custom_ids of items that it completed
    std::unique_ptr<Condition> changed{};
  };
  // How a process reaches the coordinator of the moment.
  using Send = std::function<Reply(http::Request)>;

  Machine(World& world, Send send) : world_(world), send_(std::move(send)) {}

  std::string_view name() const override { return "simulated"; }
  Slots slots() const override {
    return Slots(kNumSlots + (world_.options.mutant == Mutant::kCountsTooFewSlots ? 1 : 0));
  }
  Result<std::string> launch(const LaunchRequest& request) override;
  Result<Observation> observe(const std::string& handle, const std::string& folder) override;
  Status stop(const std::string& handle, StopMode mode) override;
  Result<int> sweep(const std::string& mark, const std::string& folder) override;

  // Every process ends: power failed, or the keepers saw no coordinator for too long.
  void end_all(std::optional<int> exit_code);
  // Those of the job whose ranks live.
  std::vector<const Process*> living(JobId job) const;
  size_t num_living() const;
  Process* find(const std::string& url);
  const Process* find(JobId job, int64_t attempt) const;
  void end(Process& process, std::optional<int> exit_code);
  World& world() { return world_; }

 private:
  void check_launch(const Process& launched);
  void live(Process& process);
  void measure(Process& process);
  void serve(Process& process);
  bool register_at_coordinator(Process& process);
  Reply send_registration(const Process& process, bool right_secret);
  void meet_its_fate(Process& process);

  World& world_;
  Send send_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// The probes and drains of one coordinator.
std::unique_ptr<ReplicaWatch> make_watch(Machine& machine);
// The requests of its batches. What they do follows from their prompt: see item_prompt().
std::unique_ptr<ItemClient> make_item_client(Machine& machine);
// One of a mixture: mostly good ones; few that are refused, that fail now and then, that take for ever or
// that kill their engine.
std::string item_prompt(World& world, int64_t number);

}  // namespace llm_dist::cluster::simulation
