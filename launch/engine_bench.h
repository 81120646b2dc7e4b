// EngineBench: an engine of this process under random prompts, for `bench latency` and `bench throughput`.
#pragma once

#include <memory>
#include <random>

#include "launch/bench.h"
#include "launch/bench_progress.h"
#include "launch/decode_window.h"
#include "src/engine/engine.h"

namespace llm_dist::launch {

// What one batch took.
struct Sample {
  double seconds = 0;              // from submission to the last token
  double first_token_seconds = 0;  // until the last of the batch's first tokens
  DecodeWindow decode;
  int64_t output_tokens = 0;
  std::vector<size_t> input_lens;  // tokens of each prompt
};

// Rank 0 only; the others follow.
class EngineBench {
 public:
  // All runs together are to generate `num_tokens`.
  EngineBench(const LoadFlags& flags, RankProcess& process, int64_t num_tokens);

  // `count` sequences at once, random prompts, exactly output_len tokens each.
  Result<Sample> run(int count, int output_len);
  engine::EngineStats stats() const { return engine_->stats(); }
  void stop() { engine_->stop(); }

 private:
  sched::SequenceRequest random_request(int input_len, int output_len);

  const LoadFlags& flags_;
  BenchProgress progress_;  // outlives the engine, which counts
  RankProcess& process_;
  std::unique_ptr<engine::Engine> engine_;
  std::mt19937 random_{1};
};

}  // namespace llm_dist::launch
