// Linear layers against a slow twin that dequantizes the weights by itself and sums in double.
#include "kernels/cpu/linear.h"

#include <gtest/gtest.h>
#include <oneapi/dnnl/dnnl.h>

#include "src/device/cpu/cpu_backend.h"
#include "tests/base/allocation_count.h"
#include "tests/kernels/linear_cases.h"

namespace llm_dist::kernels {
namespace {

constexpr WeightScheme kDense[] = {WeightScheme::kF32, WeightScheme::kBF16, WeightScheme::kF16};
constexpr WeightScheme kQuantized[] = {WeightScheme::kQ4_1, WeightScheme::kQ4_0, WeightScheme::kQ8_0};
constexpr DType kActivations[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr int64_t kTokens[] = {0, 1, 2, 3, 7, 8, 9, 17, 64};
constexpr int64_t kMaxTokens = 600;
constexpr int64_t kMaxFeatures = 1536;

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> found;
  for (CpuLevel level : {CpuLevel::kAvx2, CpuLevel::kAvxVnni, CpuLevel::kAvx512}) {
    if (supports(level)) found.push_back(level);
  }
  return found;
}

// Value `i` of row `row`, straight from the definitions in src/base/weight.h.
double weight_value(const std::vector<std::byte>& bytes, const Weight& weight, int64_t row, int64_t i) {
  const std::byte* at = bytes.data() + row * row_bytes(weight.scheme, weight.k);
  switch (weight.scheme) {
    case WeightScheme::kF32: return get(at, DType::kF32, i);
    case WeightScheme::kF16: return get(at, DType::kF16, i);
    case WeightScheme::kBF16: return get(at, DType::kBF16, i);
    case WeightScheme::kF8E4M3:
      return static_cast<double>(to_float(Float8E4M3{std::to_integer<uint8_t>(at[i])})) *
             weight.parts[1].as<float>()[row];
    default: break;
  }
  at += i / 32 * scheme_traits(weight.scheme).block_bytes;
  double d = get(at, DType::kF16, 0);
  if (weight.scheme == WeightScheme::kQ8_0) return d * static_cast<int8_t>(at[2 + i % 32]);
  const std::byte* quants = at + (weight.scheme == WeightScheme::kQ4_1 ? 4 : 2);
  int byte = std::to_integer<int>(quants[i % 16]);
  int q = i % 32 < 16 ? byte & 15 : byte >> 4;
  return weight.scheme == WeightScheme::kQ4_1 ? d * q + get(at, DType::kF16, 1) : d * (q - 8);
}

std::vector<double> dequantized(const std::vector<std::byte>& plain, const Weight& weight) {
  std::vector<double> values;
  for (int64_t row = 0; row < weight.n; ++row) {
    for (int64_t i = 0; i < weight.k; ++i) values.push_back(weight_value(plain, weight, row, i));
  }
  return values;
}

struct Expected {
  std::vector<double> values;
  double size = 0.0;  // √(Σ x² w²): the outputs' size if products did not cancel; few outputs vary by chance
};

Expected reference(const Matrix& x, const std::vector<double>& w, int64_t n, const Matrix* bias) {
  const int64_t k = x.view.dim(1);
  Expected out;
  double squares = 0.0;
  for (int64_t t = 0; t < x.view.dim(0); ++t) {
    for (int64_t row = 0; row < n; ++row) {
      double sum = bias != nullptr ? bias->at(0, row) : 0.0;
      squares += sum * sum;
      for (int64_t i = 0; i < k; ++i) {
        double product = x.at(t, i) * w[static_cast<size_t>(row * k + i)];
        sum += product;
        squares += product * product;
      }
      out.values.push_back(sum);
    }
  }
  out.size = std::sqrt(squares);
  return out;
}

// Root mean square of the differences over the outputs' size.
double relative_error(const Matrix& out, const Expected& expected) {
  const int64_t n = out.view.dim(1);
  double difference = 0.0;
  for (int64_t t = 0; t < out.view.dim(0); ++t) {
    for (int64_t i = 0; i < n; ++i) {
      double wrong = out.at(t, i) - expected.values[static_cast<size_t>(t * n + i)];
      difference += wrong * wrong;
    }
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference) / expected.size;
}

// The most that storing one value in `dtype` takes off it, and a sum in f32.
double rounding(DType dtype) {
  return dtype == DType::kF32 ? 2e-6 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-10;
}

class LinearTest : public ::testing::Test {
 protected:
  std::unique_ptr<CpuOpState> make_state(int threads, CpuTuning tuning = {}) {
    auto state = CpuOpState::make(
        *backend_, {.threads = threads, .max_tokens = kMaxTokens, .max_features = kMaxFeatures}, tuning);
    EXPECT_TRUE(state.ok()) << state.status().to_string();
    return std::move(state).value();
  }
  void synchronize() {
    Status status = stream_->synchronize(Deadline::after_seconds(60));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void run(CpuOpState& state, const LinearParams& params) {
    linear_cpu(state, *stream_, params);
    synchronize();
  }
  void prepare(CpuOpState& state, Weight& weight) {
    Status status = prepare_weight_cpu(state, *stream_, weight);
    ASSERT_TRUE(status.ok()) << status.to_string();
    synchronize();
  }

  std::unique_ptr<device::Backend> backend_ = device::make_cpu_backend({.threads = 2});
  std::unique_ptr<device::Stream> stream_ = backend_->make_stream("linear");
  std::mt19937 random_{20240607};
};

struct Case {
  WeightScheme scheme;
  DType x;
  DType out;
  int64_t n, k;
  bool bias;
};

std::string name_of(const Case& c, int64_t tokens, const CpuOpState& state, bool packed) {
  return format("{} weight [{}, {}], {} tokens of {} to {}, {}, {} threads, bias {}, packed {}",
                to_string(c.scheme),
                c.n,
                c.k,
                tokens,
                to_string(c.x),
                to_string(c.out),
                to_string(state.level()),
                state.threads(),
                c.bias,
                packed);
}

class LinearCases : public LinearTest {
 protected:
  // Every token count, plain and then packed, in each state, within `tolerance` of the twin.
  void check(const Case& c, const std::vector<CpuOpState*>& states, double tolerance) {
    RandomWeight weight(c.scheme, c.n, c.k, random_);
    const std::vector<double> values = dequantized(weight.bytes, weight.weight);
    Matrix bias(c.x, 1, c.n, c.n, random_);
    for (bool packed : {false, true}) {
      if (packed) prepare(*states.front(), weight.weight);
      for (int64_t tokens : kTokens) {
        Matrix x(c.x, tokens, c.k, c.k + 5, random_);
        Expected expected = reference(x, values, c.n, c.bias ? &bias : nullptr);
        for (CpuOpState* state : states) {
          Matrix out(c.out, tokens, c.n, c.n + 3, random_);
          const Matrix before = out;
          LinearParams params{.x = x.view, .weight = weight.weight, .bias = {}, .out = out.view};
          if (c.bias) params.bias = bias.view.reshaped({c.n});
          run(*state, params);
          EXPECT_LE(relative_error(out, expected), tolerance) << name_of(c, tokens, *state, packed);
          for (int64_t t = 0; t < tokens; ++t) {  // between the rows nothing is written
            for (int64_t i = c.n; i < c.n + 3; ++i) {
              ASSERT_EQ(get(out.bytes.data(), c.out, t * (c.n + 3) + i),
                        get(before.bytes.data(), c.out, t * (c.n + 3) + i));
            }
          }
        }
      }
      if (!is_quantized(c.scheme)) return;
    }
  }

  std::vector<CpuOpState*> every_state() {
    std::vector<CpuOpState*> states;
    for (CpuLevel level : levels()) {
      for (int threads : {1, 2}) {
        kept_.push_back(make_state(threads, {.level = level}));
        states.push_back(kept_.back().get());
      }
    }
    return states;
  }

 private:
  std::vector<std::unique_ptr<CpuOpState>> kept_;
};

TEST_F(LinearCases, QuantizedWeightsMatchTheTwin) {
  std::vector<CpuOpState*> states = every_state();
  for (WeightScheme scheme : kQuantized) {
    for (DType x : kActivations) {
      for (DType out : {x, DType::kF32}) {
        for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 32}, {37, 96}, {64, 288}}) {
          // One output's error is one draw of a spread of half a percent.
          check({scheme, x, out, n, k, n == 37}, states, n == 1 ? 0.025 : 0.01);
        }
      }
    }
  }
}

TEST_F(LinearCases, DenseAndScaledWeightsMatchTheTwin) {
  std::vector<CpuOpState*> states = every_state();
  for (WeightScheme scheme :
       {WeightScheme::kF32, WeightScheme::kBF16, WeightScheme::kF16, WeightScheme::kF8E4M3}) {
    for (DType x : kActivations) {
      for (DType out : {x, DType::kF32}) {
        double tolerance = std::max(rounding(out), x == DType::kF32 ? 2e-6 : 2e-5);
        for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {37, 75}, {65, 257}}) {
          check({scheme, x, out, n, k, n == 37}, states, tolerance);
        }
      }
    }
  }
}

// oneDNN's reference loops take a thousand times as long as our own kernels: it is asked only where it has
// kernels.
TEST_F(LinearTest, DenseProductsAreNotByReferenceLoops) {
  auto state = make_state(2);
  ASSERT_EQ(dnnl_set_verbose(1), dnnl_success);  // a line for each call, with the kernel's name
  testing::internal::CaptureStdout();
  for (WeightScheme scheme : kDense) {
    RandomWeight weight(scheme, 64, 96, random_);
    for (DType x : kActivations) {
      for (DType out : {x, DType::kF32}) {
        for (bool has_bias : {false, true}) {
          Matrix rows(x, 64, 96, 96, random_);
          Matrix bias(x, 1, 64, 64, random_);
          Matrix result(out, 64, 64, 64, random_);
          run(*state,
              {.x = rows.view,
               .weight = weight.weight,
               .bias = has_bias ? bias.view.reshaped({64}) : Tensor{},
               .out = result.view});
        }
      }
    }
  }
  dnnl_set_verbose(0);
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find(",exec,cpu,matmul,"), std::string::npos) << said;  // of floats there is always one
  EXPECT_EQ(said.find(",matmul,ref"), std::string::npos) << said;
}

// The int8 error is the activations' alone: against the same products with rounded activations in double, the
// kernels are exact to f32.
TEST_F(LinearTest, QuantizedErrorComesFromActivationsOnly) {
  for (WeightScheme scheme : kQuantized) {
    RandomWeight weight(scheme, 48, 576, random_);
    const std::vector<double> values = dequantized(weight.bytes, weight.weight);
    Matrix x(DType::kF32, 9, 576, 576, random_);
    for (int64_t at = 0; at < 9 * 576; at += 32) {  // whole numbers up to exactly ±127 quantize to themselves
      for (int64_t i = 0; i < 32; ++i) {
        float value = std::nearbyint(40.0f * get(x.bytes.data(), DType::kF32, at + i));
        put(x.bytes.data(), DType::kF32, at + i, i == 7 ? -127.0f : std::clamp(value, -127.0f, 127.0f));
      }
    }
    for (CpuLevel level : levels()) {
      auto state = make_state(2, {.level = level});
      Matrix out(DType::kF32, 9, 48, 48, random_);
      run(*state, {.x = x.view, .weight = weight.weight, .bias = {}, .out = out.view});
      EXPECT_LE(relative_error(out, reference(x, values, 48, nullptr)), 1e-6)
          << to_string(scheme) << " " << to_string(level);
    }
  }
}

// Extremes of both operands: no intermediate saturates.
TEST_F(LinearTest, ExtremeQuantsDoNotSaturate) {
  for (WeightScheme scheme : kQuantized) {
    for (int fill : {0x00, 0xff, 0x80, 0x7f}) {
      RandomWeight weight(scheme, 16, 64, random_);
      const int64_t block_bytes = scheme_traits(scheme).block_bytes;
      for (int64_t at = 0; at < weight.weight.bytes(); ++at) {
        if (at % block_bytes >= block_bytes % 16) weight.bytes[static_cast<size_t>(at)] = std::byte(fill);
      }
      const std::vector<double> values = dequantized(weight.bytes, weight.weight);
      Matrix x(DType::kF32, 1, 64, 64, random_);
      for (int64_t i = 0; i < 64; ++i) put(x.bytes.data(), DType::kF32, i, i < 50 ? 127.0f : -127.0f);
      for (CpuLevel level : levels()) {
        auto state = make_state(1, {.level = level});
        Matrix out(DType::kF32, 1, 16, 16, random_);
        run(*state, {.x = x.view, .weight = weight.weight, .bias = {}, .out = out.view});
        EXPECT_LE(relative_error(out, reference(x, values, 16, nullptr)), 1e-5)
            << to_string(scheme) << " " << to_string(level) << " " << fill;
      }
    }
  }
}

// A token's row is the same bits whatever stands beside it, whatever the threads, packed or plain.
TEST_F(LinearTest, RowsDoNotDependOnTheBatch) {
  const int64_t n = 83, k = 224, tokens = 300;
  for (WeightScheme scheme :
       {WeightScheme::kQ4_1, WeightScheme::kQ4_0, WeightScheme::kQ8_0, WeightScheme::kBF16}) {
    for (CpuLevel level : levels()) {
      auto one = make_state(1, {.level = level, .max_skinny_tokens = kMaxTokens});
      auto two = make_state(2, {.level = level, .max_skinny_tokens = kMaxTokens});
      RandomWeight weight(scheme, n, k, random_);
      Matrix x(DType::kBF16, tokens, k, k, random_);
      Matrix alone(DType::kF32, tokens, n, n, random_);
      Matrix together(DType::kF32, tokens, n, n, random_);
      for (int64_t t = 0; t < tokens; ++t) {
        linear_cpu(
            *one,
            *stream_,
            {.x = x.view.rows(t, 1), .weight = weight.weight, .bias = {}, .out = alone.view.rows(t, 1)});
      }
      synchronize();
      prepare(*two, weight.weight);
      run(*two, {.x = x.view, .weight = weight.weight, .bias = {}, .out = together.view});
      EXPECT_TRUE(alone.bytes == together.bytes) << to_string(scheme) << " " << to_string(level);
    }
  }
}

TEST_F(LinearTest, WideBatchesMatchTheTwin) {
  const int64_t tokens = 523, n = 70, k = 96;
  auto state = make_state(2);
  for (WeightScheme scheme : {WeightScheme::kQ4_1, WeightScheme::kBF16, WeightScheme::kF32}) {
    RandomWeight weight(scheme, n, k, random_);
    const std::vector<double> values = dequantized(weight.bytes, weight.weight);
    prepare(*state, weight.weight);
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      Matrix x(dtype, tokens, k, k, random_);
      Matrix out(DType::kF32, tokens, n, n, random_);
      run(*state, {.x = x.view, .weight = weight.weight, .bias = {}, .out = out.view});
      EXPECT_LE(relative_error(out, reference(x, values, n, nullptr)), is_quantized(scheme) ? 0.01 : 1e-5)
          << to_string(scheme) << " " << to_string(dtype);
    }
  }
}

TEST_F(LinearTest, DequantizedRowsAreExact) {
  auto state = make_state(2);
  for (WeightScheme scheme : {WeightScheme::kQ4_1,
                              WeightScheme::kQ4_0,
                              WeightScheme::kQ8_0,
                              WeightScheme::kF32,
                              WeightScheme::kF16,
                              WeightScheme::kBF16}) {
    RandomWeight weight(scheme, 35, 160, random_);
    const std::vector<double> values = dequantized(weight.bytes, weight.weight);
    for (bool packed : {false, true}) {
      if (packed) prepare(*state, weight.weight);
      for (int64_t row = 0; row < 35; ++row) {
        std::vector<float> floats(160);
        dequantize_weight_row(weight.weight, row, floats.data());
        for (size_t i = 0; i < 160; ++i) {
          ASSERT_NEAR(floats[i], values[static_cast<size_t>(row) * 160 + i], 1e-7) << to_string(scheme);
        }
      }
    }
  }
}

TEST_F(LinearTest, PackingTwiceChangesNothing) {
  auto state = make_state(1);
  RandomWeight weight(WeightScheme::kQ4_1, 32, 64, random_);
  const std::vector<std::byte> plain = weight.bytes;
  prepare(*state, weight.weight);
  const std::vector<std::byte> packed = weight.bytes;
  EXPECT_TRUE(weight.weight.packed);
  EXPECT_FALSE(packed == plain);
  prepare(*state, weight.weight);
  EXPECT_TRUE(weight.bytes == packed);
}

TEST_F(LinearTest, RefusesWhatItCannotPack) {
  auto state = make_state(1);
  Weight wide{.scheme = WeightScheme::kQ8_0, .n = 16, .k = kMaxFeatures + 32};
  EXPECT_EQ(prepare_weight_cpu(*state, *stream_, wide).code(), StatusCode::kInvalidArgument);
  Weight broken{.scheme = WeightScheme::kQ8_0, .n = 16, .k = 40};
  EXPECT_EQ(prepare_weight_cpu(*state, *stream_, broken).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(wide.packed || broken.packed);
}

TEST_F(LinearTest, WorkspaceIsWhatWasSaid) {
  OpStateOptions options{.threads = 3, .max_tokens = 4096, .max_features = 1500, .vocab_size = 49152};
  auto state = CpuOpState::make(*backend_, options);
  ASSERT_TRUE(state.ok());
  auto bytes = static_cast<int64_t>((*state)->activation_workspace().size() + (*state)->scratch().size());
  EXPECT_EQ(bytes, cpu_workspace_bytes(options));
  EXPECT_GE((*state)->activation_workspace().size(), size_t{kTokenBlock} * 1500 * 4);
  std::byte* second = (*state)->thread_scratch(1).data();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 64, 0u);
  EXPECT_EQ(second - (*state)->thread_scratch(0).data(), CpuOpState::thread_scratch_bytes(options));
}

TEST_F(LinearTest, AllocatesNothing) {
  for (WeightScheme scheme : {WeightScheme::kQ4_1, WeightScheme::kQ8_0, WeightScheme::kF16}) {
    auto state = make_state(2);
    RandomWeight weight(scheme, 200, 640, random_);
    Matrix x(DType::kBF16, 64, 640, 640, random_);
    Matrix out(DType::kBF16, 64, 200, 200, random_);
    LinearParams params{.x = x.view, .weight = weight.weight, .bias = {}, .out = out.view};
    run(*state, params);
    const int64_t before = num_allocations();
    for (int i = 0; i < 10; ++i) linear_cpu(*state, *stream_, params);
    const bool done = stream_->synchronize(Deadline::after_seconds(60)).ok();
    EXPECT_EQ(num_allocations(), before) << to_string(scheme);
    EXPECT_TRUE(done);
  }
}

// What is not finite must not come out as a number; the other rows keep theirs.
TEST_F(LinearTest, NonFiniteActivationsStayNonFinite) {
  const int64_t n = 20, k = 96;
  for (CpuLevel level : levels()) {
    auto state = make_state(1, {.level = level});
    RandomWeight weight(WeightScheme::kQ4_1, n, k, random_);
    for (float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      for (int64_t at : {0, 13, 50, 95}) {
        Matrix x(DType::kF32, 2, k, k, random_);
        Matrix out(DType::kF32, 2, n, n, random_);
        put(x.bytes.data(), DType::kF32, k + at, bad);
        run(*state, {.x = x.view, .weight = weight.weight, .bias = {}, .out = out.view});
        for (int64_t i = 0; i < n; ++i) {
          EXPECT_TRUE(std::isfinite(out.at(0, i)));
          EXPECT_FALSE(std::isfinite(out.at(1, i))) << bad << " at " << at << " " << to_string(level);
        }
      }
    }
  }
}

// More threads than groups of rows: tokens are shared out, rows stay the same bits.
TEST_F(LinearTest, FewRowsOverManyThreads) {
  auto one = make_state(1);
  auto many = make_state(7);
  RandomWeight weight(WeightScheme::kQ4_0, 40, 512, random_);
  for (int64_t tokens : {1, 31, 300}) {
    Matrix x(DType::kF32, tokens, 512, 512, random_);
    Matrix expected(DType::kF32, tokens, 40, 40, random_);
    Matrix out(DType::kF32, tokens, 40, 40, random_);
    run(*one, {.x = x.view, .weight = weight.weight, .bias = {}, .out = expected.view});
    run(*many, {.x = x.view, .weight = weight.weight, .bias = {}, .out = out.view});
    EXPECT_TRUE(out.bytes == expected.bytes) << tokens;
  }
}

TEST_F(LinearTest, RunsAgainFromAGraph) {
  auto state = make_state(2);
  RandomWeight weight(WeightScheme::kQ8_0, 48, 64, random_);
  Matrix x(DType::kF32, 2, 64, 64, random_);
  Matrix out(DType::kF32, 2, 48, 48, random_);
  backend_->begin_capture(*stream_);
  linear_cpu(*state, *stream_, {.x = x.view, .weight = weight.weight, .bias = {}, .out = out.view});
  auto graph = backend_->end_capture(*stream_);
  ASSERT_TRUE(graph.ok());
  Matrix other(DType::kF32, 2, 64, 64, random_);
  std::copy(other.bytes.begin(), other.bytes.end(), x.bytes.begin());
  (*graph)->launch(*stream_);
  synchronize();
  EXPECT_LE(relative_error(out, reference(x, dequantized(weight.bytes, weight.weight), 48, nullptr)), 0.01);
}

}  // namespace
}  // namespace llm_dist::kernels
