// What the CPU ops' tests share: a backend, a stream, a state, and tensors that are written and read as
// doubles.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/cpu_ops.h"
#include "src/device/cpu/cpu_backend.h"
#include "tests/highway_targets.h"

namespace llm_dist::kernels {

inline double element(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kF32: return static_cast<double>(static_cast<const float*>(tensor.data)[i]);
    case DType::kF16: return static_cast<double>(to_float(static_cast<const Float16*>(tensor.data)[i]));
    case DType::kBF16: return static_cast<double>(to_float(static_cast<const BFloat16*>(tensor.data)[i]));
    case DType::kI32: return static_cast<const int32_t*>(tensor.data)[i];
    case DType::kF8E4M3: return static_cast<double>(to_float(static_cast<const Float8E4M3*>(tensor.data)[i]));
    default: return 0;
  }
}

inline void set_element(const Tensor& tensor, int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  switch (tensor.dtype) {
    case DType::kF32: static_cast<float*>(tensor.data)[i] = narrow; break;
    case DType::kF16: static_cast<Float16*>(tensor.data)[i] = to_f16(narrow); break;
    case DType::kBF16: static_cast<BFloat16*>(tensor.data)[i] = to_bf16(narrow); break;
    case DType::kI32: static_cast<int32_t*>(tensor.data)[i] = static_cast<int32_t>(value); break;
    case DType::kF8E4M3: static_cast<Float8E4M3*>(tensor.data)[i] = to_f8e4m3(narrow); break;
    default: break;
  }
}

// Owns exactly the bytes of one contiguous tensor, so that ASan sees an access beyond them.
class TestTensor {
 public:
  TestTensor(DType dtype, std::initializer_list<int64_t> shape) {
    int64_t numel = 1;
    for (int64_t n : shape) numel *= n;
    bytes_ = std::make_unique<std::byte[]>(static_cast<size_t>(numel * dtype_bytes(dtype)));
    view_ = Tensor::contiguous(bytes_.get(), dtype, shape);
  }
  TestTensor(DType dtype, std::initializer_list<int64_t> shape, const std::vector<double>& values)
      : TestTensor(dtype, shape) {
    CHECK_EQ(view_.numel(), static_cast<int64_t>(values.size()));
    for (int64_t i = 0; i < view_.numel(); ++i) set(i, values[static_cast<size_t>(i)]);
  }

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }
  double at(int64_t i) const { return element(view_, i); }
  void set(int64_t i, double value) { set_element(view_, i, value); }
  std::vector<double> values() const {
    std::vector<double> all;
    for (int64_t i = 0; i < view_.numel(); ++i) all.push_back(at(i));
    return all;
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  Tensor view_;
};

// Normally distributed values by the million: a table, walked from a random place on. Its length is a prime,
// so that no two rows of a matrix are alike.
class Normals {
 public:
  explicit Normals(uint64_t seed) : random_(seed) {
    std::normal_distribution<double> normal;
    for (double& value : table_) value = normal(random_);
  }
  void fill(const Tensor& tensor, double scale) {
    size_t at = random_() % table_.size();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      set_element(tensor, i, scale * table_[at]);
      if (++at == table_.size()) at = 0;
    }
  }

 private:
  std::mt19937_64 random_;
  std::vector<double> table_ = std::vector<double>(65521);
};

// Every value of f8_e4m3, what lies between two, and what is beyond them all; a multiple of 16.
inline std::vector<double> values_about_f8() {
  std::vector<double> values;
  for (int code = 0; code < 256; ++code) {
    const float value = to_float(Float8E4M3{static_cast<uint8_t>(code)});
    if (std::isnan(value)) continue;
    for (float factor : {1.0f, 1.0624f, 1.0625f, 1.0626f, 0.97f, 1e-3f, 1e3f})
      values.push_back(static_cast<double>(value * factor));
  }
  values.resize((values.size() + 15) / 16 * 16);
  return values;
}

// The largest relative error of rounding to a dtype.
inline double rounding_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 0x1p-8;
    case DType::kF16: return 0x1p-11;
    case DType::kF8E4M3: return 0x1p-4;
    default: return 1e-6;
  }
}

inline void expect_near_all(const std::vector<double>& expected, const TestTensor& actual, double tolerance) {
  ASSERT_EQ(static_cast<int64_t>(expected.size()), actual.view().numel());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(expected[i], actual.at(static_cast<int64_t>(i)), tolerance * (1 + std::abs(expected[i])))
        << "element " << i << " of " << actual.view().to_string();
  }
}

// Runs each test once for each instruction set that the ops are compiled for.
class OpTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if ((hwy::SupportedTargets() & GetParam()) == 0) GTEST_SKIP() << "this CPU lacks the instruction set";
    use_highway_targets(GetParam());
    backend_ = device::make_cpu_backend({.threads = 2});
    stream_ = backend_->make_stream("test");
    state_ = make_state({.threads = 2, .max_tokens = 512, .max_features = 4096, .vocab_size = 50000});
  }
  void TearDown() override { use_highway_targets(0); }

  std::unique_ptr<OpState> make_state(const OpStateOptions& options) {
    return cpu_ops().make_state(*backend_, options).value();
  }

  template <typename Params>
  void run(Op<Params> op, const Params& params) {
    op(*state_, *stream_, params);
    const Status status = stream_->synchronize(Deadline::after_seconds(60));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  std::vector<double> random_values(int64_t n, double scale = 1) {
    std::normal_distribution<double> normal(0, scale);
    std::vector<double> values(static_cast<size_t>(n));
    for (double& value : values) value = normal(random_);
    return values;
  }
  TestTensor random_tensor(DType dtype, std::initializer_list<int64_t> shape, double scale = 1) {
    const int64_t n = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    return TestTensor(dtype, shape, random_values(n, scale));
  }

  const OpTable& ops_ = cpu_ops();
  std::mt19937_64 random_{7};
  std::unique_ptr<device::Backend> backend_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<OpState> state_;
};

inline constexpr int64_t kTargets[] = {HWY_AVX2, HWY_AVX3};
inline std::string target_name(const testing::TestParamInfo<int64_t>& info) {
  return info.param == HWY_AVX2 ? "avx2" : "avx512";
}
inline constexpr DType kActivationTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
inline constexpr DType kCacheTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3};

}  // namespace llm_dist::kernels
