// Which of a batch's tokens tell how long a decode step of the whole batch takes.
#pragma once

#include <cstdint>
#include <vector>

namespace llm_dist::launch {

// The decode steps in which all sequences of a batch take part: from the last one's first token, before which
// prompts are still read, to the first one's end, behind which ever fewer sequences are left.
struct DecodeWindow {
  int steps = 0;
  double seconds = 0;           // of all of them
  double tokens_generated = 0;  // of a sequence, up to the middle of the window; the mean
};

// `token_times_ns`: of each sequence, each of its tokens'; at least one token each. Those of a step are near
// each other, in any order.
DecodeWindow decode_window(const std::vector<std::vector<int64_t>>& token_times_ns);

// How many tokens each sequence has to generate for the window to have at least half of `output_len` steps:
// those whose prompts are read first generate tokens while the others' are read.
// chunked: a prompt may be read in several steps.
int tokens_for_window(int batch, int input_len, int output_len, int64_t max_num_batched_tokens, bool chunked);

}  // namespace llm_dist::launch
