// Decode attention in GB/s of KV read, prompt attention in GFLOP/s, sampling in µs a row.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/cpu_ops.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::kernels {
namespace {

class Bench {
 public:
  explicit Bench(int threads)
      : backend_(device::make_cpu_backend({.threads = threads})),
        stream_(backend_->make_stream("bench")),
        state_(cpu_ops()
                   .make_state(
                       *backend_,
                       {.threads = threads, .max_tokens = 1024, .max_features = 4096, .vocab_size = kVocab})
                   .value()) {}

  void attention(
      const char* name, int64_t sequences, int64_t queries, int64_t context, int64_t head_dim, DType kv);
  void sampling(const char* name, const SampleRow& row);

 private:
  static constexpr int64_t kVocab = 49152;

  Tensor tensor(DType dtype, std::initializer_list<int64_t> shape) {
    int64_t numel = 1;
    for (int64_t n : shape) numel *= n;
    buffers_.push_back(
        backend_->allocate(numel * dtype_bytes(dtype) + 1, device::MemoryKind::kDevice).value());
    return buffers_.back().view(dtype, shape);
  }

  // The best of some runs, in seconds.
  template <typename Params>
  double seconds(Op<Params> op, const Params& params) {
    double best = 1e9;
    for (int i = 0; i < 12; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      op(*state_, *stream_, params);
      CHECK(stream_->synchronize(Deadline::after_seconds(60)).ok());
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return best;
  }

  std::unique_ptr<device::Backend> backend_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<OpState> state_;
  std::vector<device::Buffer> buffers_;
};

void Bench::attention(
    const char* name, int64_t sequences, int64_t queries, int64_t context, int64_t head_dim, DType kv) {
  constexpr int64_t kHeads = 9, kKvHeads = 3, kBlock = 16;
  const int64_t blocks = (context + kBlock - 1) / kBlock;
  const Tensor starts = tensor(DType::kI32, {sequences + 1});
  const Tensor lens = tensor(DType::kI32, {sequences});
  const Tensor tables = tensor(DType::kI32, {sequences, blocks});
  for (int64_t s = 0; s < sequences; ++s) {
    starts.as<int32_t>()[s + 1] = static_cast<int32_t>((s + 1) * queries);
    lens.as<int32_t>()[s] = static_cast<int32_t>(context);
    for (int64_t b = 0; b < blocks; ++b)
      tables.as<int32_t>()[s * blocks + b] = static_cast<int32_t>(b * sequences + s);
  }
  const Tensor cache = tensor(kv, {2, sequences * blocks, kKvHeads, kBlock * head_dim});
  const Tensor k = cache.rows(0, 1).reshaped({sequences * blocks, kKvHeads, kBlock, head_dim});
  const Tensor v = cache.rows(1, 1).reshaped({sequences * blocks, kKvHeads, kBlock, head_dim});
  const AttentionParams params{.q = tensor(DType::kF32, {sequences * queries, kHeads * head_dim}),
                               .k_cache = k,
                               .v_cache = v,
                               .query_starts = starts,
                               .context_lens = lens,
                               .block_tables = tables,
                               .out = tensor(DType::kF32, {sequences * queries, kHeads * head_dim}),
                               .num_heads = kHeads,
                               .num_kv_heads = kKvHeads,
                               .scale = 0.125f};
  const double time = seconds(cpu_ops().attention, params);
  const auto seen = static_cast<double>(queries * context - queries * (queries - 1) / 2);
  const double flops = 4.0 * static_cast<double>(sequences * kHeads * head_dim) * seen;
  std::printf("attention %-34s %9.1f µs %7.1f GB/s %7.1f GFLOP/s\n",
              name,
              time * 1e6,
              static_cast<double>(cache.bytes()) / time * 1e-9,
              flops / time * 1e-9);
  buffers_.clear();
}

void Bench::sampling(const char* name, const SampleRow& row) {
  constexpr int64_t kRows = 8;
  const Tensor logits = tensor(DType::kF32, {1, kRows, kVocab});
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  for (int64_t i = 0; i < kRows * kVocab; ++i) logits.as<float>()[i] = normal(random);
  const Tensor rows = tensor(DType::kU8, {kRows, static_cast<int64_t>(sizeof(SampleRow))});
  for (int64_t i = 0; i < kRows; ++i) std::memcpy(rows.as<uint8_t>() + i * rows.stride(0), &row, sizeof row);
  const SampleParams params{.logits = logits,
                            .vocab_size = kVocab,
                            .rows = rows,
                            .history = tensor(DType::kI32, {1, 2048}),
                            .records = tensor(DType::kI32, {kRows, kSampleRecordWords})};
  std::printf("sample %-37s %9.1f µs a row\n", name, seconds(cpu_ops().sample, params) * 1e6 / kRows);
  buffers_.clear();
}

}  // namespace
}  // namespace llm_dist::kernels

// cpu_ops_bench [threads]
int main(int argc, char** argv) {
  using namespace llm_dist;
  using namespace llm_dist::kernels;
  Bench bench(argc > 1 ? std::atoi(argv[1]) : 1);
  bench.attention("decode 32 × 1k, d 64, KV f32", 32, 1, 1024, 64, DType::kF32);
  bench.attention("decode 32 × 1k, d 64, KV bf16", 32, 1, 1024, 64, DType::kBF16);
  bench.attention("decode 32 × 1k, d 64, KV f16", 32, 1, 1024, 64, DType::kF16);
  bench.attention("decode 1 × 4k, d 128, KV bf16", 1, 1, 4096, 128, DType::kBF16);
  bench.attention("prompt 1k, d 64, KV f32", 1, 1024, 1024, 64, DType::kF32);
  bench.attention("prompt 1k, d 64, KV bf16", 1, 1024, 1024, 64, DType::kBF16);
  bench.attention("prompt 1k, d 128, KV bf16", 1, 1024, 1024, 128, DType::kBF16);
  bench.sampling("greedy", {.slot = 0, .temperature = 0});
  bench.sampling("temperature", {.slot = 0});
  bench.sampling("top-k 50, top-p 0.9", {.slot = 0, .top_k = 50, .top_p = 0.9f});
  bench.sampling("top-p 0.9", {.slot = 0, .top_p = 0.9f});
  bench.sampling("temperature, 5 logprobs", {.slot = 0, .num_logprobs = 5});
  bench.sampling("penalties over 2k tokens", {.slot = 0, .position = 2048, .repetition_penalty = 1.1f});
}
