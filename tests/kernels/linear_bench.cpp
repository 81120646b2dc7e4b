// Not a test: what the linear layers of SmolLM2-135M reach beside the rate at which this machine reads
// memory.
//   kernels_bench [threads] [AVX2|AVX-VNNI|AVX-512]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include "kernels/cpu/linear_dense.h"
#include "kernels/cpu/linear_quantized.h"
#include "kernels/cpu/parallel.h"
#include "src/device/cpu/cpu_backend.h"
#include "tests/kernels/linear_cases.h"

namespace llm_dist::kernels {
namespace {

constexpr int64_t kMaxTokens = 512;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The sum over pieces of each piece's least time in several rounds over all pieces: every piece is cold when
// its turn comes, and what else runs on a shared machine seldom hits the same piece each time.
template <typename F>
double best_seconds(int64_t pieces, const F& run_piece) {
  constexpr double kBudgetSeconds = 0.5;
  constexpr int kLeastRounds = 3;
  std::vector<double> best(static_cast<size_t>(pieces), 1e9);
  const double begin = seconds_now();
  for (int round = 0; round < kLeastRounds || seconds_now() - begin < kBudgetSeconds; ++round) {
    for (size_t i = 0; i < best.size(); ++i) {
      double start = seconds_now();
      run_piece(static_cast<int64_t>(i));
      best[i] = std::min(best[i], seconds_now() - start);
    }
  }
  return std::accumulate(best.begin(), best.end(), 0.0);
}

// Reads `bytes` with every thread and adds them up.
double read_gb_per_second(int threads, int64_t bytes) {
  constexpr int64_t kPieceWords = 128 * 1024;
  const int64_t pieces = bytes / 8 / kPieceWords;
  auto backend = device::make_cpu_backend({});
  auto memory = backend->allocate(pieces * kPieceWords * 8, device::MemoryKind::kDevice);
  CHECK(memory.ok(), "{}", memory.status().to_string());
  auto* words = reinterpret_cast<uint64_t*>(memory->data());
  std::fill_n(words, pieces * kPieceWords, 1);
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  double seconds = best_seconds(pieces, [&](int64_t piece) {
    parallel_for(threads, kPieceWords, 1, [&](int64_t begin, int64_t end, int thread) {
      const uint64_t* from = words + piece * kPieceWords;
      uint64_t a = 0, b = 0, c = 0, d = 0;
      for (int64_t i = begin; i + 4 <= end; i += 4) {
        a += from[i];
        b += from[i + 1];
        c += from[i + 2];
        d += from[i + 3];
      }
      sums[static_cast<size_t>(thread) * 8] += a + b + c + d;
    });
  });
  CHECK(sums[0] != 0, "nothing was read");
  return static_cast<double>(pieces * kPieceWords * 8) / seconds / 1e9;
}

struct Layer {
  const char* name;
  WeightScheme scheme;
  int64_t n, k;
  int copies;  // a model's layers: together they do not fit the caches
};

class Bench {
 public:
  Bench(int threads, CpuTuning tuning) : backend_(device::make_cpu_backend({.threads = threads})) {
    auto state = CpuOpState::make(
        *backend_, {.threads = threads, .max_tokens = kMaxTokens, .max_features = 1536}, tuning);
    CHECK(state.ok(), "{}", state.status().to_string());
    state_ = std::move(state).value();
  }

  void add(const Layer& layer, DType dtype) {
    layers_.push_back(layer);
    const int64_t bytes = layer.n * row_bytes(layer.scheme, layer.k);
    auto buffer = backend_->allocate(layer.copies * bytes, device::MemoryKind::kDevice);
    CHECK(buffer.ok(), "{}", buffer.status().to_string());
    RandomWeight random(layer.scheme, 32, layer.k, random_);  // repeated: drawing every value would take long
    for (int64_t at = 0; at < buffer->bytes(); ++at) {
      buffer->data()[at] = random.bytes[static_cast<size_t>(at) % random.bytes.size()];
    }
    for (int i = 0; i < layer.copies; ++i) {
      Weight weight = random.weight;
      weight.n = layer.n;
      weight.parts[0] = buffer->view(DType::kU8, {layer.n, row_bytes(layer.scheme, layer.k)}, i * bytes);
      if (is_quantized(layer.scheme)) pack_weight(*state_, weight);
      weight.packed = is_quantized(layer.scheme);
      weights_.push_back(weight);
    }
    buffers_.push_back(std::move(buffer).value());
    x_.emplace_back(dtype, kMaxTokens, layer.k, layer.k, random_);
    out_.emplace_back(dtype, kMaxTokens, layer.n, layer.n, random_);
  }

  void report_all(int64_t tokens) {
    double total = 0.0;
    for (size_t i = 0, first = 0; i < layers_.size(); first += static_cast<size_t>(layers_[i++].copies)) {
      total += report(i, first, tokens);
    }
    std::printf("%4ld tokens  all layers %43s %9.3f ms  %8.1f tokens/s\n",
                tokens,
                "",
                total * 1e3,
                static_cast<double>(tokens) / total);
  }

 private:
  double report(size_t i, size_t first, int64_t tokens) {
    const Layer& layer = layers_[i];
    double seconds = best_seconds(layer.copies, [&](int64_t copy) {
      LinearParams params{.x = x_[i].view.rows(0, tokens),
                          .weight = weights_[first + static_cast<size_t>(copy)],
                          .bias = {},
                          .out = out_[i].view.rows(0, tokens)};
      if (is_quantized(layer.scheme)) return run_quantized_linear(*state_, params);
      CHECK(run_dense_linear(*state_, params).ok(), "run_dense_linear");
    });
    double bytes = static_cast<double>(layer.copies * weights_[first].bytes());
    double operations = 2.0 * static_cast<double>(layer.copies * layer.n * layer.k * tokens);
    std::printf("%4ld tokens  %-8s %-5s [%5ld, %5ld] × %2d  %8.1f µs each  %6.1f GB/s  %7.1f GFLOP/s\n",
                tokens,
                layer.name,
                std::string(to_string(layer.scheme)).c_str(),
                layer.n,
                layer.k,
                layer.copies,
                seconds / layer.copies * 1e6,
                bytes / seconds / 1e9,
                operations / seconds / 1e9);
    return seconds;
  }

  std::unique_ptr<device::Backend> backend_;
  std::unique_ptr<CpuOpState> state_;
  std::mt19937 random_{7};
  std::vector<Layer> layers_;
  std::vector<device::Buffer> buffers_;
  std::vector<Weight> weights_;
  std::vector<Matrix> x_, out_;
};

void run_model(int threads, CpuTuning tuning, WeightScheme body, WeightScheme head, DType dtype) {
  Bench bench(threads, tuning);
  bench.add({"qkv", body, 960, 576, 30}, dtype);
  bench.add({"attn_out", body, 576, 576, 30}, dtype);
  bench.add({"gate_up", body, 3072, 576, 30}, dtype);
  bench.add({"down", body, 576, 1536, 30}, dtype);
  bench.add({"head", head, 49152, 576, 1}, dtype);
  for (int64_t tokens : {1, 2, 4, 8}) bench.report_all(tokens);
  Bench prefill(threads, tuning);  // without the head: it sees one row a prompt
  prefill.add({"qkv", body, 960, 576, 30}, dtype);
  prefill.add({"attn_out", body, 576, 576, 30}, dtype);
  prefill.add({"gate_up", body, 3072, 576, 30}, dtype);
  prefill.add({"down", body, 576, 1536, 30}, dtype);
  for (int64_t tokens : {32, 128, 512}) prefill.report_all(tokens);
}

int run(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  CpuTuning tuning;
  if (argc > 2) {
    const std::string level = argv[2];
    tuning.level = level == "AVX2"       ? CpuLevel::kAvx2
                   : level == "AVX-VNNI" ? CpuLevel::kAvxVnni
                                         : CpuLevel::kAvx512;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("memory read, %d threads: 98 MB %.1f GB/s, 1 GB %.1f GB/s\n",
              threads,
              read_gb_per_second(threads, 98'000'000),
              read_gb_per_second(threads, 1'000'000'000));
  std::printf("-- Q4_1, Q8_0 head, f32 activations\n");
  run_model(threads, tuning, WeightScheme::kQ4_1, WeightScheme::kQ8_0, DType::kF32);
  std::printf("-- bf16\n");
  run_model(threads, tuning, WeightScheme::kBF16, WeightScheme::kBF16, DType::kBF16);
  return 0;
}

}  // namespace
}  // namespace llm_dist::kernels

int main(int argc, char** argv) { return llm_dist::kernels::run(argc, argv); }
