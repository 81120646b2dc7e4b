// Flags that say how tokens are drawn: of commands that continue a text in this process or ask a server to,
// and of benchmarks.
#pragma once

#include <cstdint>
#include <vector>

#include "src/sched/request.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace llm_dist::launch {

struct DrawFlags {
  double temperature = 0.0;
  double top_p = 1.0;
  int32_t top_k = 0;
};
void add_draw_flags(CLI::App& app, DrawFlags& flags);
void apply_draw_flags(const DrawFlags& flags, sched::SamplingParams& sampling);

struct SamplingFlags {
  int32_t max_tokens = 128;
  DrawFlags draw;
  uint64_t seed = 0;
};

// Returns --max-tokens.
CLI::Option* add_sampling_flags(CLI::App& app, SamplingFlags& flags);

// `end_token_ids`: what ends an answer.
sched::SamplingParams sampling_of(const SamplingFlags& flags, std::vector<int32_t> end_token_ids);

}  // namespace llm_dist::launch
