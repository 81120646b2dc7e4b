// Profiled steps added up: for each kind of step, what its time goes to.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/engine/step_profile.h"

namespace llm_dist::engine {

// One name's part of a step; means a step.
struct ProfileRow {
  std::string name;
  kernels::CallKind kind = kernels::CallKind::kOp;
  double calls = 0;
  double us = 0;  // of all its calls
};

// Decode steps of one number of sequences, or steps with prompts whose tokens lie between two powers of two.
// Figures are means over the middle half of the steps by duration, so that warming up and disturbances do not
// count and the parts still add up: step_us = Σ rows' us + gaps_us.
struct ProfileTable {
  bool decode_only = false;
  int64_t sequences = 0;   // of decode steps
  int64_t min_tokens = 0;  // seen
  int64_t max_tokens = 0;
  int64_t num_steps = 0;    // seen
  int64_t num_counted = 0;  // of these, the middle half
  double step_us = 0;
  double gaps_us = 0;  // no op was under way
  double between_us =
      0;  // median from the end of such a step to the begin of the next step, if of the same kind
  std::vector<ProfileRow> rows;  // largest first

  double us_of(kernels::CallKind kind) const;
  std::string label() const;  // "decode, batch 8", "prompt, 65 to 128 tokens"
};

// Prompts first, then decodes by number of sequences. `steps`: in order.
std::vector<ProfileTable> summarize(std::span<const ProfiledStep> steps);

}  // namespace llm_dist::engine
