// TokenRecord: what the step thread hands to the stream thread. Of fixed size, so that handing it over
// allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/sched/request.h"

namespace llm_dist::server {

class Generation;

struct TokenRecord {
  static constexpr size_t kMaxTop = 20;
  enum class Kind : uint8_t {
    kWake,   // look around: a client left, the world failed
    kBegin,  // a new generation
    kToken,
  };

  Kind kind = Kind::kWake;
  sched::FinishReason finish = sched::FinishReason::kNone;
  int32_t choice = 0;
  int32_t token = -1;
  int32_t prompt_position = -1;  // from 1 on: no new token, what the model says of the prompt's token there
  float logprob = 0.0f;
  uint32_t num_top = 0;
  std::array<int32_t, kMaxTop> top_ids{};
  std::array<float, kMaxTop> top_logprobs{};
  TimePoint time;
  TimePoint started;  // see engine::Generated
  std::shared_ptr<Generation> generation;
  Status error;  // with kError
};

}  // namespace llm_dist::server
