// Requests over a golden's model, and replicas that answer them, for the engine's tests.
#pragma once

#include <chrono>
#include <future>
#include <random>

#include "tests/golden/golden_case.h"

namespace llm_dist::engine {

inline sched::SequenceRequest random_request(std::mt19937& random, int64_t vocab_size, uint64_t tag) {
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  std::vector<int32_t> prompt(static_cast<size_t>(draw(2, 30)));
  for (int32_t& token : prompt) token = draw(0, static_cast<int>(vocab_size) - 1);
  return greedy_request(std::move(prompt), draw(4, 30), tag);
}

inline std::vector<sched::SequenceRequest> random_requests(const GoldenCase& golden, size_t count) {
  std::mt19937 random(7);
  std::vector<sched::SequenceRequest> requests;
  requests.reserve(count);
  for (size_t i = 0; i < count; ++i) requests.push_back(random_request(random, golden.vocab_size(), i));
  return requests;
}

// Holds up the engine's own thread at a token, so that nothing goes on until release().
class HoldingSink : public OutputSink {
 public:
  explicit HoldingSink(size_t at_token) : at_token_(at_token) {}
  void on_generated(const Generated& generated) override {
    OutputSink::on_generated(generated);
    if (output().tokens.size() == at_token_ && !held_) {
      held_ = true;
      released_.get_future().wait_for(std::chrono::minutes(2));
    }
  }
  void release() { released_.set_value(); }

 private:
  size_t at_token_;
  bool held_ = false;  // on the engine's thread
  std::promise<void> released_;
};

inline std::unique_ptr<Replica> start(const GoldenCase& golden, ReplicaOptions options) {
  auto replica = Replica::start(*golden.checkpoint, std::move(options));
  CHECK(replica.ok(), "{}", replica.status().to_string());
  return std::move(replica).value();
}

inline std::vector<std::vector<int32_t>> tokens_of(const std::vector<Output>& outputs) {
  std::vector<std::vector<int32_t>> tokens;
  tokens.reserve(outputs.size());
  for (const Output& output : outputs) tokens.push_back(output.tokens);
  return tokens;
}

inline std::vector<std::vector<int32_t>> generate(const GoldenCase& golden,
                                                  const EngineOptions& options,
                                                  std::vector<sched::SequenceRequest> requests) {
  return tokens_of(start(golden, {.engine = options})->generate(std::move(requests)));
}

}  // namespace llm_dist::engine
