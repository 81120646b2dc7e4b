// EnginePort: the little that the server asks of an engine, so that it can be tested without one.
#pragma once

#include <memory>

#include "src/base/status.h"
#include "src/engine/engine_stats.h"
#include "src/engine/sequence_sink.h"
#include "src/sched/request.h"

namespace llm_dist::engine {
class Engine;
}

namespace llm_dist::server {

// Every method: any thread.
class EnginePort {
 public:
  virtual ~EnginePort() = default;
  // invalid_argument: it can never run; resource_exhausted: the queue is full; unavailable: stopping.
  virtual Result<sched::SequenceId> submit(sched::SequenceRequest request,
                                           std::shared_ptr<engine::SequenceSink> sink) = 0;
  // An unknown or finished id is fine.
  virtual void cancel(sched::SequenceId id) = 0;
  virtual engine::EngineStats stats() = 0;
  // Nothing is running or waiting.
  virtual bool idle() = 0;
};

// `engine` outlives the port. Defined in the target llm_dist_server_engine.
std::unique_ptr<EnginePort> make_engine_port(engine::Engine& engine);

}  // namespace llm_dist::server
