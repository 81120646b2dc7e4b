// A golden model and what the reference says of it (make_goldens.py).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/checkpoint/checkpoint.h"
#include "src/device/cpu/cpu_backend.h"
#include "tests/engine/replica.h"

namespace llm_dist::engine {

struct GoldenCase {
  std::string name;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint;
  double gap = 0.0;  // least difference of the two highest logits at any step
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> tokens;  // greedy, [prompts][steps]
  std::vector<float> logits;                 // [prompts, steps, vocabulary]

  int64_t steps() const { return static_cast<int64_t>(tokens[0].size()); }
  int64_t vocab_size() const { return checkpoint->config().vocab_size; }
  const float* logits_at(size_t prompt, int64_t step) const {
    return logits.data() + (static_cast<int64_t>(prompt) * steps() + step) * vocab_size();
  }
};

GoldenCase load_golden(const std::string& name);

// Small blocks and steps, so that prompts span blocks and chunks.
EngineOptions golden_options(const parallel::Layout& layout, DType dtype = DType::kF32);
// The same, but blocks and steps of many tokens where heads are wide: GPUs have kernels of their own for
// those.
EngineOptions golden_options(const GoldenCase& golden,
                             const parallel::Layout& layout,
                             DType dtype = DType::kF32);

// Records the logits of every sampled row, of a thousand at most, on every rank of the last stage. Requests
// are told apart by their seeds.
class LogitsRecorder {
 public:
  // They are copied to pinned memory of `backend`: to other memory a device's driver copies while it keeps
  // other threads waiting, whose ranks this one may wait for.
  LogitsRecorder(const parallel::Layout& layout,
                 int64_t vocab_size,
                 std::unique_ptr<device::Backend> backend = device::make_cpu_backend({}));
  // For ReplicaOptions::hooks.
  EngineHooks hooks(int rank);
  // Of the token at `position` of the request with this seed; empty when it was never sampled. Once the
  // replica is idle.
  std::vector<float> row(uint64_t seed, int64_t position) const;

 private:
  struct Row {
    uint64_t seed = 0;
    int64_t position = 0;
    std::span<float> shard;
  };
  struct Rank {
    std::vector<uint64_t> slot_seeds;
    std::vector<Row> rows;
    device::Buffer memory;  // of all rows
  };
  void record(Rank& rank, const sched::StepPlan& plan, const Tensor& logits, device::Stream& stream);

  parallel::Layout layout_;
  int64_t vocab_size_;
  std::unique_ptr<device::Backend> backend_;
  std::vector<Rank> ranks_;  // [tp], of the last stage
};

}  // namespace llm_dist::engine
