// RankProcess: one rank of a replica from its launch to its end: world, host channel, failure watch,
// checkpoint, engine.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "comm/host/host_channel.h"
#include "comm/host/liveness.h"
#include "comm/world.h"
#include "launch/device_choice.h"
#include "launch/flags.h"
#include "launch/text_model.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/rank_engine.h"
#include "src/engine/step_profile.h"
#include "src/engine/step_trace.h"

namespace llm_dist::launch {

class ShutdownSignal;

class RankProcess {
 public:
  // Finds its rank and joins the world.
  static Result<std::unique_ptr<RankProcess>> join(const EngineFlags& flags);
  ~RankProcess();

  int rank() const { return world_->rank_info().rank; }
  int size() const { return world_->rank_info().size; }
  bool leads() const { return rank() == 0; }

  // Called once when a peer dies or the world is given up, before this process exits: rank 0 tells its
  // clients.
  // Returns once no earlier callback is running.
  void set_on_failure(std::function<void(const Status&)> callback) {
    std::lock_guard lock(on_failure_mutex_);
    on_failure_ = std::move(callback);
  }

  // Collective: finds this rank's device, one that no other rank has. load() does it too; a command without a
  // model does this alone.
  Status take_device(const EngineFlags& flags);
  // Collective: opens the checkpoint, chooses the layout, plans memory, loads the weights. The same error on
  // every rank.
  Status load(const EngineFlags& flags, kernels::OpObserver* observer = nullptr);
  // The same for a command that reads or writes text: rank 0 then has a tokenizer, and where there is none no
  // weights are loaded.
  Status load_with_text(const EngineFlags& flags) {
    wants_text_ = true;
    return load(flags);
  }
  TextModel take_text() { return std::move(*text_); }  // of rank 0, once
  engine::RankEngine& engine() { return *engine_; }
  // How the ranks met: "mpi", "tcp", or "none" for one rank alone.
  const std::string& rendezvous() const { return rendezvous_; }
  const RankDevice& device() const { return device_; }
  int threads() const { return resources_.threads; }  // of the CPU, for this rank
  comm::World& world() { return *world_; }
  const checkpoint::Checkpoint& checkpoint() const { return *checkpoint_; }
  comm::HostChannel* channel() { return channel_.get(); }  // null in a world of one
  const engine::EngineHooks& hooks() const { return hooks_; }

  // Every rank but 0: runs steps until rank 0 ends the world.
  Status follow();
  // This rank cannot go on: peers learn the cause at once, the process exits.
  [[noreturn]] void give_up(const Status& cause);
  void give_up_from(const Status& cause);  // the same, from a thread that must not block
  // `signal` ends this process when it returns. `why` ("ended by SIGINT") is printed here; the other ranks
  // end with the signal's code too and take it for no failure. A rank's death that is seen shortly before or
  // after the signal is the cause instead.
  void announce_end(const std::string& why, int signal);
  // Collective: the first failing rank's status, on every rank, so that all leave in order.
  Status agree(const Status& mine);
  // The error that load() returned is every rank's.
  bool agreed_on_error() const { return agreed_on_error_; }
  // Collective, after the last step: writes --trace-file and --profile, if they were asked for.
  Status write_traces();
  // An orderly end, on every rank.
  void leave();

 private:
  RankProcess() = default;
  Status connect(const EngineFlags& flags);
  Status find_device(const EngineFlags& flags);
  Status open_model(const EngineFlags& flags);
  Status prepare(const EngineFlags& flags, bool sees_ops);
  Status compare_terms();
  Status everywhere(Status status);  // notes that all ranks have it
  Status start_traces(const EngineFlags& flags);
  Status write_profile();
  Result<std::vector<std::string>> gathered(const std::string& mine);
  Status note_library_files();
  void on_peer_failure(comm::RankFailure failure);
  void tell_clients(const Status& cause);
  [[noreturn]] void exit_after_failure(int code);

  std::unique_ptr<comm::World> world_;
  std::unique_ptr<comm::HostChannel> channel_;
  std::unique_ptr<comm::Liveness> liveness_;
  RankDevice device_;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  bool wants_text_ = false;
  std::optional<TextModel> text_;
  std::unique_ptr<engine::StepTrace> trace_;
  std::unique_ptr<engine::StepProfile> profile_;
  std::string trace_file_;
  std::string profile_file_;
  bool graphs_dropped_ = false;  // for who looks at the ops of steps
  std::string rendezvous_;
  std::unique_ptr<engine::RankEngine> engine_;
  engine::EngineHooks hooks_;
  ResolvedOptions resolved_;
  RankResources resources_;
  // In /dev/shm, of all ranks of this host: when a rank dies, nobody else removes what NCCL put there.
  std::vector<std::string> library_files_;
  bool agreed_on_error_ = false;
  std::atomic<bool> cause_is_told_ = false;  // of this process's end: who set it tells it, nobody else
  std::mutex on_failure_mutex_;
  std::function<void(const Status&)> on_failure_;
};

// Leaves the world after a command that ended with `status`; returns the process's exit code. An error of
// this rank alone ends every rank. `signal`, if any, calls the farewell that it was given until the traces
// are written.
int end(RankProcess& process, Status status, ShutdownSignal* signal = nullptr);

// The same, and the process ends without a destructor: for who has a thread that goes on.
[[noreturn]] void end_at_once(RankProcess& process, Status status, ShutdownSignal* signal);

// Turns a Status into the process's exit code, printing it once for the world. kRefusedExitCode where flags
// or files are wrong and all ranks know it, before anything runs; 1 for what may be otherwise another time.
int report(const RankProcess* process, const Status& status);

}  // namespace llm_dist::launch
