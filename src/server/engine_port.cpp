#include "src/server/engine_port.h"

#include "src/engine/engine.h"

namespace llm_dist::server {
namespace {

class RealEnginePort final : public EnginePort {
 public:
  explicit RealEnginePort(engine::Engine& engine) : engine_(engine) {}

  Result<sched::SequenceId> submit(sched::SequenceRequest request,
                                   std::shared_ptr<engine::SequenceSink> sink) override {
    return engine_.submit(std::move(request), std::move(sink));
  }
  void cancel(sched::SequenceId id) override { engine_.cancel(id); }
  engine::EngineStats stats() override { return engine_.stats(); }
  bool idle() override { return engine_.idle(); }

 private:
  engine::Engine& engine_;
};

}  // namespace

std::unique_ptr<EnginePort> make_engine_port(engine::Engine& engine) {
  return std::make_unique<RealEnginePort>(engine);
}

}  // namespace llm_dist::server
