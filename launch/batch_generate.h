// Generation over a file of prompts: one JSON object a line in, one a line out. What the output holds already
// is not done again, so that a batch goes on where it was interrupted.
#pragma once

#include <string>

#include "launch/batch_file.h"
#include "launch/rank_process.h"
#include "launch/shutdown_signal.h"
#include "launch/text_model.h"
#include "src/sched/request.h"

namespace llm_dist::launch {

struct BatchFlags {
  std::string input_file;
  std::string output_file;
  double shutdown_timeout_seconds = 30;
};

struct BatchResult {
  size_t done = 0;     // lines answered now
  size_t before = 0;   // lines that the output held already
  size_t refused = 0;  // of those done: answered with an error
  size_t left = 0;     // lines without an answer: for the next time
  bool complete = true;
};

struct BatchFiles {
  BatchInput input;
  BatchOutput output;
};

// On rank 0, before anything is loaded. failed_precondition when another process writes the output.
Result<BatchFiles> open_batch_files(const BatchFlags& flags);

// On rank 0. `defaults` is the request of a line that says nothing else. What is wrong with a line is its
// answer; a line whose chat template takes too long is left. A signal ends it early: what runs gets
// shutdown_timeout_seconds, the rest is for the next time.
Result<BatchResult> generate_batch(const BatchFlags& flags,
                                   const sched::SamplingParams& defaults,
                                   TextModel text,
                                   BatchFiles files,
                                   RankProcess& process,
                                   ShutdownSignal& signal);

}  // namespace llm_dist::launch
