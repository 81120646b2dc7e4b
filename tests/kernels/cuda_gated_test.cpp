// The gated projection on a GPU beside the CPU's in float: in one kernel of ours, of few rows or of a
// prompt's, and as a product with the activation behind it.
#include <cstring>
#include <span>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

class CudaGated : public CudaLinearTest {
 protected:
  struct Case {
    DType dtype = DType::kBF16;
    bool bias = false;
    int64_t m, n, k;     // [m, k] by [2n, k]
    bool whole = false;  // in one kernel: without a product in memory
    int64_t gap = 0;     // elements between the rows of the result, and as many in a row behind the last one
  };
  struct State {
    LinearKernels kernels;
    std::unique_ptr<OpState> state;
  };
  using States = std::span<State>;
  // One for each, to be tried beside the same result of the CPU.
  std::vector<State> states_of(const std::vector<LinearKernels>& all) {
    std::vector<State> states;
    for (LinearKernels kernels : all) {
      use_state(kernels);
      states.push_back({kernels, std::move(gpu_state_)});
    }
    use_state(LinearKernels::kFastest);
    return states;
  }
  // On every one of `states`, or on this test's where there are none.
  void check_dense(const Case& test, States states = {}) {
    const Twin w = random_twin(test.dtype, {2 * test.n, test.k}, 2 / std::sqrt(static_cast<double>(test.k)));
    const double rounding = test.dtype == DType::kF32 ? 2e-4 : 4 * tolerance(test.dtype);
    check(test, [&](auto pick) { return dense_weight(w, pick); }, Rounds::kNothing, rounding, states);
  }
  void check_f8(const Case& test, Rounds rounds, States states = {}) {
    const F8Weight w = f8_weight(2 * test.n, test.k);
    // As those of products that are not gated, but either side of a gate multiplies the other's.
    const double of_out = 4 * tolerance(test.dtype);
    check(
        test,
        [&](auto pick) { return w.weight(pick); },
        rounds,
        rounds == Rounds::kRows   ? 3e-2
        : rounds == Rounds::kSums ? 1.2e-2 + of_out
                                  : of_out,
        states);
  }

  // What the GPU has where nothing but poison was put.
  void expect_untouched(const Twin& twin) {
    EXPECT_EQ(std::memcmp(download(twin).data(), twin.cpu.data, static_cast<size_t>(twin.cpu.bytes())), 0);
  }
  void issue_gated(const Twin& x, const Twin& w, const Twin& products, const Tensor& out) {
    module_->ops->linear_silu_and_mul(*gpu_state_,
                                      *gpu_stream_,
                                      {.x = x.gpu,
                                       .weight = dense_weight(w, [](const Twin& twin) { return twin.gpu; }),
                                       .bias = {},
                                       .gate_up = products.gpu,
                                       .out = out});
  }

 private:
  // Whether it is to be by our kernels for few rows: where the library is not tried, and one row is not
  // skinny_linear.cu's.
  static bool is_streamed(const Case& test, const Weight& weight, LinearKernels kernels) {
    const bool f8 = weight.scheme == WeightScheme::kF8E4M3;
    const bool ours = kernels != LinearKernels::kFastest && kernels != LinearKernels::kLibrary;
    return ours && !(test.m == 1 && kernels == LinearKernels::kOwn) && test.dtype != DType::kF32 &&
           test.m >= 1 && test.m <= (f8 ? 128 : 256) && test.n % 8 == 0 && test.k % (f8 ? 16 : 8) == 0;
  }
  template <typename WeightOf>
  void check(const Case& test, WeightOf&& weight_of, Rounds rounds, double tolerance, States states) {
    const auto [dtype, with_bias, m, n, k, whole, gap] = test;
    SCOPED_TRACE(format("{} rows of {} by [{}, {}], bias {}", m, dtype, 2 * n, k, with_bias));
    const Twin given = random_twin(dtype, {m, k});
    if (rounds == Rounds::kRows) scale_rows(given);
    const Twin seen = as_floats(given);
    if (rounds == Rounds::kRows) round_rows(seen);
    const Twin bias = random_twin(dtype, {2 * n});
    const Twin bias_seen = as_floats(bias);
    const Twin products = output_twin(dtype, {m, 2 * n});
    const Twin out = output_twin(dtype, {m + (gap > 0), n + gap});
    const Twin products_expected = output_twin(DType::kF32, {m, 2 * n});
    const Twin expected = output_twin(DType::kF32, {m + (gap > 0), n + gap});
    auto rows = [m, n](const Tensor& all) { return all.rows(0, m).narrow(1, 0, n); };
    cpu_ops().linear_silu_and_mul(*cpu_state_,
                                  *cpu_stream_,
                                  {.x = seen.cpu,
                                   .weight = weight_of([](const Twin& twin) { return twin.cpu; }),
                                   .bias = with_bias ? bias_seen.cpu : Tensor{},
                                   .gate_up = products_expected.cpu,
                                   .out = rows(expected.cpu)});
    auto run = [&] {
      for (const Twin* poisoned : {&products, &out}) upload(*poisoned);
      module_->ops->linear_silu_and_mul(*gpu_state_,
                                        *gpu_stream_,
                                        {.x = given.gpu,
                                         .weight = weight_of([](const Twin& twin) { return twin.gpu; }),
                                         .bias = with_bias ? bias.gpu : Tensor{},
                                         .gate_up = products.gpu,
                                         .out = rows(out.gpu)});
      synchronize();
      expect_near(out, expected, tolerance);
      if (whole) expect_untouched(products);
    };
    if (states.empty()) run();
    for (auto& [kernels, state] : states) {
      SCOPED_TRACE(format("kernels {}", static_cast<int>(kernels)));
      std::swap(gpu_state_, state);
      run();
      std::swap(gpu_state_, state);
      if (is_streamed(test, weight_of([](const Twin& twin) { return twin.gpu; }), kernels))
        expect_divided(*state, wanted_division(kernels, m, 2 * n, k, rounds != Rounds::kNothing));
    }
  }
};

// {rows, columns of the result, features}
constexpr std::array<int64_t, 3> kShapes[] = {
    {0, 64, 64},     {1, 1536, 576},   {1, 3584, 4096},  {1, 20, 27},       {1, 9001, 40},   {2, 24, 40},
    {5, 13, 1000},   {7, 1536, 576},   {8, 7168, 1024},  {16, 512, 8192},   {17, 8, 8200},   {31, 40, 2048},
    {32, 72, 1000},  {33, 3584, 1024}, {64, 1000, 4096}, {65, 1536, 576},   {72, 40, 2048},  {88, 200, 832},
    {96, 264, 512},  {97, 72, 1032},   {100, 40, 2048},  {128, 3584, 1024}, {129, 72, 1032}, {192, 1536, 576},
    {200, 40, 2048}, {255, 264, 512},  {300, 128, 1536}};

TEST_F(CudaGated, AsOnTheCpu) {
  std::vector<LinearKernels> all = kOwnKernels;
  all.insert(all.end(), {LinearKernels::kFastest, LinearKernels::kLibrary});
  auto states = states_of(all);
  for (DType dtype : kActivationTypes) {
    for (auto [m, n, k] : kShapes) {
      for (bool bias : {false, true})
        check_dense({.dtype = dtype, .bias = bias, .m = m, .n = n, .k = k}, states);
    }
  }
}

// Of more than 32 rows, which go through shared memory: what lies between rows of the result and behind the
// last one is not written.
TEST_F(CudaGated, OfFewRowsApart) {
  auto states = states_of(kOwnKernels);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {33, 64, 65, 96, 100, 128, 130, 250}) {
      for (int64_t n : {72, 200})
        check_dense({.dtype = dtype, .bias = n == 72, .m = m, .n = n, .k = 328, .gap = 8}, states);
    }
  }
}

TEST_F(CudaGated, WithF8Weights) {
  auto even = states_of({LinearKernels::kEven, LinearKernels::kEvenWide});
  auto others = states_of({LinearKernels::kOwn, LinearKernels::kFastest});
  auto all = states_of(kOwnKernels);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (auto [m, n, k] : kShapes) {
      for (bool bias : {false, true}) {
        const Case test{.dtype = dtype, .bias = bias, .m = m, .n = n, .k = k};
        if (m > 32) {
          // Rows that are not whole pieces of 16 codes are not rounded.
          check_f8(test, k % 16 == 0 ? Rounds::kRows : Rounds::kNothing, all);
          continue;
        }
        check_f8(test, Rounds::kSums, even);
        // Of one row in float.
        check_f8(test, m == 1 ? Rounds::kNothing : Rounds::kSums, others);
      }
    }
  }
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    check_f8({.dtype = dtype, .m = 70, .n = 50, .k = 27}, Rounds::kNothing);
    check_f8({.dtype = dtype, .bias = true, .m = 33, .n = 1536, .k = 576}, Rounds::kRows);
    check_f8({.dtype = dtype, .m = 300, .n = 512, .k = 1536}, Rounds::kRows);
  }
}

// Prompts by the kernel that applies the gate itself: one row more than its tiles have, tiles for which there
// are no rows at all, and more tiles than run at the same time in more than one group of rows.
class CudaGatedPrompts : public CudaGated {
 protected:
  void SetUp() override {
    CudaGated::SetUp();
    if (IsSkipped()) return;
    if (!is_hopper()) GTEST_SKIP() << "no kernel of ours for prompts";
    use_state(LinearKernels::kOwn);
  }
};

TEST_F(CudaGatedPrompts, AsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {256, 257, 300, 384, 1000, 2048}) {
      for (auto [n, k] : {std::pair<int64_t, int64_t>{128, 64}, {384, 192}, {128, 4096}})
        check_dense({.dtype = dtype, .m = m, .n = n, .k = k, .whole = true});
    }
    check_dense({.dtype = dtype, .m = 2300, .n = 2048, .k = 192, .whole = true});
    check_dense({.dtype = dtype, .m = 257, .n = 14336, .k = 320, .whole = true});
  }
}

// Rows that fill clusters of eight: by those alone, and with some columns by pairs beside them. Rings that
// wrap, and more tiles than clusters.
TEST_F(CudaGatedPrompts, OfLargeClustersAsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t n : {512, 3840, 4096})
      check_dense({.dtype = dtype, .m = 512, .n = n, .k = 576, .whole = true});
    check_dense({.dtype = dtype, .m = 1024, .n = 4096, .k = 320, .whole = true});
    check_dense({.dtype = dtype, .m = 1024, .n = 14336, .k = 320, .whole = true});
  }
}

TEST_F(CudaGatedPrompts, WithF8Weights) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {256, 257, 384, 1000}) {
      for (auto [n, k] : {std::pair<int64_t, int64_t>{128, 128}, {384, 384}, {128, 4096}})
        check_f8({.dtype = dtype, .m = m, .n = n, .k = k, .whole = true, .gap = 8}, Rounds::kRows);
    }
    check_f8({.dtype = dtype, .m = 2300, .n = 2048, .k = 256, .whole = true}, Rounds::kRows);
    for (int64_t n : {512, 3840, 4096})
      check_f8({.dtype = dtype, .m = 512, .n = n, .k = 640, .whole = true}, Rounds::kRows);
    check_f8({.dtype = dtype, .m = 1024, .n = 14336, .k = 384, .whole = true}, Rounds::kRows);
  }
}

// The two kernels of a product behind a small kernel and in front of one, as the first of a chain and its
// last.
TEST_F(CudaGatedPrompts, OfLargeClustersBetweenOthers) {
  constexpr int64_t kRows = 1024;
  constexpr int64_t kWidth = 4096;
  const Twin start = random_twin(DType::kBF16, {kRows, kWidth});
  const Twin w = random_twin(DType::kBF16, {2 * kWidth, kWidth}, 1.3 / std::sqrt(double{kWidth}));
  const Twin norm_weight = random_twin(DType::kBF16, {kWidth});
  const Twin products = output_twin(DType::kBF16, {kRows, 2 * kWidth});
  const Twin residual = output_twin(DType::kBF16, {kRows, kWidth});
  const Twin ends[] = {output_twin(DType::kBF16, {kRows, kWidth}),
                       output_twin(DType::kBF16, {kRows, kWidth})};
  auto chain = [&](bool one_by_one) {
    gpu_stream_->copy(ends[0].gpu, start.gpu);
    gpu_stream_->copy(residual.gpu, start.gpu);
    for (int i = 0; i < 5; ++i) {
      issue_gated(ends[i % 2], w, products, ends[(i + 1) % 2].gpu);
      if (one_by_one) synchronize();
      if (i % 2 == 1) continue;
      module_->ops->add_rms_norm(*gpu_state_,
                                 *gpu_stream_,
                                 {.x = ends[(i + 1) % 2].gpu,
                                  .residual = residual.gpu,
                                  .weight = norm_weight.gpu,
                                  .epsilon = 1e-5f,
                                  .out = ends[(i + 1) % 2].gpu});
      if (one_by_one) synchronize();
    }
    return download(ends[1]);
  };
  const std::vector<std::byte> expected = chain(true);
  for (int again = 0; again < 10; ++again) EXPECT_EQ(chain(false), expected);
}

// Where no kernel starts early none of a product's two runs beside the other.
TEST_F(CudaGatedPrompts, WithoutEarlyStartsAsOnTheCpu) {
  module_->allow_early_starts(false);
  for (int64_t n : {512, 3840, 4096})
    check_dense({.dtype = DType::kBF16, .m = 512, .n = n, .k = 576, .whole = true});
  module_->allow_early_starts(true);
}

TEST_F(CudaGatedPrompts, OtherShapesAreLeftToTheLibrary) {
  check_dense({.dtype = DType::kBF16, .bias = true, .m = 300, .n = 256, .k = 128});
  check_dense({.dtype = DType::kBF16, .m = 300, .n = 192, .k = 128});
  check_dense({.dtype = DType::kBF16, .m = 300, .n = 256, .k = 136});
  check_dense({.dtype = DType::kF32, .m = 300, .n = 256, .k = 128});
}

// What lies between rows of x is not read, and between rows of the result not written.
TEST_F(CudaGatedPrompts, WithRowsApart) {
  constexpr int64_t kRows = 333;
  constexpr int64_t kColumns = 256;
  constexpr int64_t kFeatures = 192;
  constexpr int64_t kGap = 24;
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const Twin x = random_twin(dtype, {kRows, kFeatures});
    const Twin w = random_twin(dtype, {2 * kColumns, kFeatures}, 0.1);
    const Twin products = output_twin(dtype, {kRows, 2 * kColumns});
    const Twin out = output_twin(dtype, {kRows, kColumns});
    issue_gated(x, w, products, out.gpu);
    const std::vector<std::byte> expected = download(out);
    std::vector<double> apart(kRows * (kFeatures + kGap), std::numeric_limits<double>::quiet_NaN());
    for (int64_t i = 0; i < kRows * kFeatures; ++i)
      apart[static_cast<size_t>(i / kFeatures * (kFeatures + kGap) + i % kFeatures)] = element(x.cpu, i);
    const Twin x_apart = twin_of(dtype, {kRows, kFeatures + kGap}, apart);
    const Twin out_apart = output_twin(dtype, {kRows, kColumns + kGap});
    issue_gated(x_apart.cut([](const Tensor& all) { return all.narrow(1, 0, kFeatures); }),
                w,
                products,
                out_apart.gpu.narrow(1, 0, kColumns));
    expect_untouched(products);
    const std::vector<std::byte> got = download(out_apart);
    const auto row_bytes = static_cast<size_t>(kColumns * dtype_bytes(dtype));
    const auto gap_bytes = static_cast<size_t>(kGap * dtype_bytes(dtype));
    const auto* poison = static_cast<const std::byte*>(out_apart.cpu.data);
    for (size_t row = 0; row < kRows; ++row) {
      const std::byte* at = got.data() + row * (row_bytes + gap_bytes);
      ASSERT_EQ(std::memcmp(at, expected.data() + row * row_bytes, row_bytes), 0) << "row " << row;
      ASSERT_EQ(std::memcmp(at + row_bytes, poison, gap_bytes), 0) << "behind row " << row;
    }
  }
}

// Sums of one term each, so that the library's are the same.
TEST_F(CudaGatedPrompts, OfExtremeValuesAsByTheLibrary) {
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = 128;
  constexpr int64_t kFeatures = 64;
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const double largest = dtype == DType::kBF16 ? 1e30 : 65504;
    const std::vector<double> extremes = {
        0, -0.0, 1e-3, -1e-3, 1, -1, 20, -20, 60, -60, -80, -100, 1e3, -1e3, 3e4, -3e4, largest, -largest};
    std::vector<double> rows;
    for (int64_t i = 0; i < kRows * kFeatures; ++i)
      rows.push_back(extremes[static_cast<size_t>(i / kFeatures + i % kFeatures * 5) % extremes.size()]);
    std::vector<double> picks(2 * kColumns * kFeatures, 0.0);
    for (int64_t i = 0; i < kColumns; ++i) {
      picks[static_cast<size_t>(i * kFeatures + i % kFeatures)] = 1;
      picks[static_cast<size_t>((kColumns + i) * kFeatures + (i * 7 + 3) % kFeatures)] = 1;
    }
    const Twin x = twin_of(dtype, {kRows, kFeatures}, rows);
    const Twin w = twin_of(dtype, {2 * kColumns, kFeatures}, picks);
    const Twin products = output_twin(dtype, {kRows, 2 * kColumns});
    const Twin out = output_twin(dtype, {kRows, kColumns});
    use_state(LinearKernels::kOwn);
    issue_gated(x, w, products, out.gpu);
    std::vector<std::byte> got = download(out);
    expect_untouched(products);
    use_state(LinearKernels::kLibrary);
    issue_gated(x, w, products, out.gpu);
    std::vector<std::byte> expected = download(out);
    Tensor ours = out.cpu;
    Tensor theirs = out.cpu;
    ours.data = got.data();
    theirs.data = expected.data();
    for (int64_t i = 0; i < ours.numel(); ++i) {
      const double want = element(theirs, i);
      const double have = element(ours, i);
      if (have == want) continue;
      ASSERT_FALSE(std::isinf(want)) << "element " << i << " is " << have;
      ASSERT_NEAR(have, want, 2 * tolerance(dtype) * std::abs(want) + 1e-7) << "element " << i;
    }
  }
}

// A kernel may start while the one in front of it runs, and must not read what that writes.
TEST_F(CudaGatedPrompts, ThatOverlapWaitForTheirInput) {
  constexpr int64_t kRows = 1000;
  constexpr int64_t kWidth = 1024;
  const Twin start = random_twin(DType::kBF16, {kRows, kWidth});
  const Twin w = random_twin(DType::kBF16, {2 * kWidth, kWidth}, 1.3 / std::sqrt(double{kWidth}));
  const Twin products = output_twin(DType::kBF16, {kRows, 2 * kWidth});
  const Twin ends[] = {output_twin(DType::kBF16, {kRows, kWidth}),
                       output_twin(DType::kBF16, {kRows, kWidth})};
  auto chain = [&](bool one_by_one) {
    gpu_stream_->copy(ends[0].gpu, start.gpu);
    for (int i = 0; i < 5; ++i) {
      issue_gated(ends[i % 2], w, products, ends[(i + 1) % 2].gpu);
      if (one_by_one) synchronize();
    }
    return download(ends[1]);
  };
  const std::vector<std::byte> expected = chain(true);
  for (int again = 0; again < 10; ++again) EXPECT_EQ(chain(false), expected);
  expect_untouched(products);
}

// Without being asked for.
TEST_F(CudaGatedPrompts, FromManyRowsOn) {
  constexpr int64_t kColumns = 512;
  constexpr int64_t kFeatures = 256;
  const Twin w = random_twin(DType::kBF16, {2 * kColumns, kFeatures}, 0.1);
  constexpr int64_t kRows = 1024;
  const Twin x = random_twin(DType::kBF16, {kRows, kFeatures});
  const Twin products = output_twin(DType::kBF16, {kRows, 2 * kColumns});
  const Twin out = output_twin(DType::kBF16, {kRows, kColumns});
  auto result_by = [&](LinearKernels kernels) {
    use_state(kernels);
    issue_gated(x, w, products, out.gpu);
    return download(out);
  };
  std::vector<std::byte> got = result_by(LinearKernels::kFastest);
  expect_untouched(products);
  std::vector<std::byte> expected = result_by(LinearKernels::kLibrary);
  Tensor ours = out.cpu;
  Tensor theirs = out.cpu;
  ours.data = got.data();
  theirs.data = expected.data();
  for (int64_t i = 0; i < ours.numel(); ++i) {
    const double want = element(theirs, i);
    ASSERT_NEAR(element(ours, i), want, 4 * tolerance(DType::kBF16) * (1 + std::abs(want)))
        << "element " << i;
  }
}

TEST_F(CudaGated, ByKernelsThatWereTriedOut) {
  use_state(LinearKernels::kFastest);
  setenv("XDG_CACHE_HOME", testing::TempDir().c_str(), 1);
  gpu_state_->start_tuning();
  for (int64_t m : {3, 33, 64, 300}) check_dense({.m = m, .n = 1536, .k = 576});
  check_f8({.m = 9, .n = 1536, .k = 576}, Rounds::kSums);
  gpu_state_->end_tuning();
  // By what was chosen for a few rows more.
  for (int64_t m : {2, 60, 297}) check_dense({.m = m, .n = 1536, .k = 576});
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace llm_dist::kernels
