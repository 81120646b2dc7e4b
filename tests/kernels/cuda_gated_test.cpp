// The gated projection on a GPU beside the CPU's in float: in one kernel of ours, and as a product with the
// activation behind it.
#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

class CudaGated : public CudaLinearTest {
 protected:
  struct Case {
    DType dtype = DType::kBF16;
    bool bias = false;
    int64_t m, n, k;  // [m, k] by [2n, k]
  };
  void check_dense(const Case& test) {
    const Twin w = random_twin(test.dtype, {2 * test.n, test.k}, 2 / std::sqrt(static_cast<double>(test.k)));
    const double rounding = test.dtype == DType::kF32 ? 2e-4 : 4 * tolerance(test.dtype);
    check(test, [&](auto pick) { return dense_weight(w, pick); }, Rounds::kNothing, rounding);
  }
  void check_f8(const Case& test, Rounds rounds) {
    const F8Weight w = f8_weight(2 * test.n, test.k);
    check(
        test,
        [&](auto pick) { return w.weight(pick); },
        rounds,
        rounds == Rounds::kRows ? 3e-2 : 4 * tolerance(test.dtype));
  }

 private:
  template <typename WeightOf>
  void check(const Case& test, WeightOf&& weight_of, Rounds rounds, double tolerance) {
    const auto [dtype, with_bias, m, n, k] = test;
    SCOPED_TRACE(format("{} rows of {} by [{}, {}], bias {}", m, dtype, 2 * n, k, with_bias));
    const Twin given = random_twin(dtype, {m, k});
    const Twin seen = as_floats(given);
    if (rounds == Rounds::kRows) round_rows(seen);
    const Twin bias = random_twin(dtype, {2 * n});
    const Twin bias_seen = as_floats(bias);
    const Twin products = output_twin(dtype, {m, 2 * n});
    const Twin out = output_twin(dtype, {m, n});
    const Twin products_expected = output_twin(DType::kF32, {m, 2 * n});
    const Twin expected = output_twin(DType::kF32, {m, n});
    cpu_ops().linear_silu_and_mul(*cpu_state_,
                                  *cpu_stream_,
                                  {.x = seen.cpu,
                                   .weight = weight_of([](const Twin& twin) { return twin.cpu; }),
                                   .bias = with_bias ? bias_seen.cpu : Tensor{},
                                   .gate_up = products_expected.cpu,
                                   .out = expected.cpu});
    module_->ops->linear_silu_and_mul(*gpu_state_,
                                      *gpu_stream_,
                                      {.x = given.gpu,
                                       .weight = weight_of([](const Twin& twin) { return twin.gpu; }),
                                       .bias = with_bias ? bias.gpu : Tensor{},
                                       .gate_up = products.gpu,
                                       .out = out.gpu});
    synchronize();
    expect_near(out, expected, tolerance);
  }
};

// {rows, columns of the result, features}
constexpr std::array<int64_t, 3> kShapes[] = {{0, 64, 64},
                                              {1, 1536, 576},
                                              {1, 3584, 4096},
                                              {1, 20, 27},
                                              {1, 9001, 40},
                                              {2, 24, 40},
                                              {5, 13, 1000},
                                              {7, 1536, 576},
                                              {8, 7168, 1024},
                                              {16, 512, 8192},
                                              {31, 40, 2048},
                                              {64, 1000, 4096},
                                              {65, 1536, 576},
                                              {300, 128, 1536}};

TEST_F(CudaGated, AsOnTheCpu) {
  for (LinearKernels kernels : {LinearKernels::kFastest, LinearKernels::kLibrary, LinearKernels::kOwn}) {
    use_state(kernels);
    for (DType dtype : kActivationTypes) {
      for (auto [m, n, k] : kShapes) {
        for (bool bias : {false, true}) check_dense({.dtype = dtype, .bias = bias, .m = m, .n = n, .k = k});
      }
    }
  }
}

TEST_F(CudaGated, WithF8Weights) {
  use_state(LinearKernels::kFastest);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (auto [m, n, k] : kShapes) {
      if (m > 32) continue;
      for (bool bias : {false, true})
        check_f8({.dtype = dtype, .bias = bias, .m = m, .n = n, .k = k}, Rounds::kNothing);
    }
    check_f8({.dtype = dtype, .m = 70, .n = 50, .k = 27}, Rounds::kNothing);
    check_f8({.dtype = dtype, .bias = true, .m = 33, .n = 1536, .k = 576}, Rounds::kRows);
    check_f8({.dtype = dtype, .m = 300, .n = 512, .k = 1536}, Rounds::kRows);
  }
}

TEST_F(CudaGated, ByKernelsThatWereTriedOut) {
  use_state(LinearKernels::kFastest);
  setenv("XDG_CACHE_HOME", testing::TempDir().c_str(), 1);
  gpu_state_->start_tuning();
  for (int64_t m : {3, 33, 64, 300}) check_dense({.m = m, .n = 1536, .k = 576});
  check_f8({.m = 9, .n = 1536, .k = 576}, Rounds::kNothing);
  gpu_state_->end_tuning();
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace llm_dist::kernels
