// Products of a prompt's rows by the kernel of ours that knows no gate, beside the CPU's in float.
#include <cstring>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

class CudaPromptLinear : public CudaLinearTest {
 protected:
  void SetUp() override {
    CudaLinearTest::SetUp();
    if (IsSkipped()) return;
    if (!is_hopper()) GTEST_SKIP() << "no kernel of ours for prompts";
    use_state(LinearKernels::kOwn);
  }
  static Weight weight_on_gpu(const Twin& w) {
    return dense_weight(w, [](const Twin& twin) { return twin.gpu; });
  }
  void issue(const Tensor& x, const Twin& w, const Tensor& out) {
    module_->ops->linear(
        *gpu_state_, *gpu_stream_, {.x = x, .weight = weight_on_gpu(w), .bias = {}, .out = out});
  }
  void check(DType dtype, int64_t m, int64_t n, int64_t k) {
    SCOPED_TRACE(format("{} rows of {} by [{}, {}]", m, dtype, n, k));
    const Twin x = random_twin(dtype, {m, k});
    const Twin w = random_twin(dtype, {n, k}, 1 / std::sqrt(static_cast<double>(k)));
    const Twin x_seen = as_floats(x);
    const Twin out = output_twin(dtype, {m, n});
    const Twin expected = output_twin(DType::kF32, {m, n});
    cpu_ops().linear(*cpu_state_,
                     *cpu_stream_,
                     {.x = x_seen.cpu,
                      .weight = dense_weight(w, [](const Twin& twin) { return twin.cpu; }),
                      .bias = {},
                      .out = expected.cpu});
    issue(x.gpu, w, out.gpu);
    synchronize();
    expect_near(out, expected, dtype == DType::kF32 ? 2e-4 : 4 * tolerance(dtype));
  }
};

// One row more than tiles have, tiles for which there are no rows at all, fewer stages than a tile of the
// result has parts, and more tiles than run at the same time in more than one group of rows.
TEST_F(CudaPromptLinear, AsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {256, 257, 300, 384, 1000, 2048}) {
      for (auto [n, k] : {std::pair<int64_t, int64_t>{256, 64}, {768, 192}, {256, 4096}})
        check(dtype, m, n, k);
    }
    check(dtype, 2300, 4096, 192);
    check(dtype, 257, 14336, 320);
  }
}

// Rows that fill clusters of eight: by those alone, and with some tiles by pairs beside them.
TEST_F(CudaPromptLinear, OfLargeClustersAsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t k : {64, 128, 576}) check(dtype, 512, 1024, k);
    check(dtype, 1024, 7680, 320);
    check(dtype, 2048, 6144, 192);
    check(dtype, 8192, 1024, 320);
  }
}

// Of so many columns that narrow tiles keep 132 processors busy to the end: by clusters of eight, with pairs
// beside them, by pairs alone, and with columns that y does not have.
TEST_F(CudaPromptLinear, OfNarrowTilesAsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t k : {64, 128, 192, 576}) check(dtype, 512, 768, k);
    check(dtype, 2048, 3072, 320);
    check(dtype, 2048, 1536, 192);
    check(dtype, 2000, 3072, 192);
    check(dtype, 2048, 2560, 320);
    check(dtype, 4096, 2560, 64);
  }
}

// Without being asked for.
TEST_F(CudaPromptLinear, FromManyRowsOn) {
  use_state(LinearKernels::kFastest);
  for (int64_t m : {1023, 1024, 1025, 1536}) check(DType::kBF16, m, 512, 256);
}

TEST_F(CudaPromptLinear, OtherShapesAreLeftToTheLibrary) {
  check(DType::kBF16, 300, 264, 128);
  check(DType::kBF16, 300, 256, 136);
  check(DType::kF32, 300, 256, 128);
}

// What lies between rows of x is not read, and between rows of the result not written.
TEST_F(CudaPromptLinear, WithRowsApart) {
  constexpr int64_t kColumns = 512;
  constexpr int64_t kFeatures = 320;
  constexpr int64_t kGap = 24;
  for (int64_t rows : {333, 512}) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      const Twin x = random_twin(dtype, {rows, kFeatures});
      const Twin w = random_twin(dtype, {kColumns, kFeatures}, 0.1);
      const Twin out = output_twin(dtype, {rows, kColumns});
      issue(x.gpu, w, out.gpu);
      const std::vector<std::byte> expected = download(out);
      std::vector<double> apart(static_cast<size_t>(rows * (kFeatures + kGap)),
                                std::numeric_limits<double>::quiet_NaN());
      for (int64_t i = 0; i < rows * kFeatures; ++i)
        apart[static_cast<size_t>(i / kFeatures * (kFeatures + kGap) + i % kFeatures)] = element(x.cpu, i);
      const Twin x_apart = twin_of(dtype, {rows, kFeatures + kGap}, apart);
      const Twin out_apart = output_twin(dtype, {rows + 1, kColumns + kGap});
      issue(x_apart.gpu.narrow(1, 0, kFeatures), w, out_apart.gpu.rows(0, rows).narrow(1, 0, kColumns));
      const std::vector<std::byte> got = download(out_apart);
      const auto row_bytes = static_cast<size_t>(kColumns * dtype_bytes(dtype));
      const auto gap_bytes = static_cast<size_t>(kGap * dtype_bytes(dtype));
      const auto* poison = static_cast<const std::byte*>(out_apart.cpu.data);
      const auto num_rows = static_cast<size_t>(rows);
      for (size_t row = 0; row < num_rows; ++row) {
        const std::byte* at = got.data() + row * (row_bytes + gap_bytes);
        ASSERT_EQ(std::memcmp(at, expected.data() + row * row_bytes, row_bytes), 0) << "row " << row;
        ASSERT_EQ(std::memcmp(at + row_bytes, poison, gap_bytes), 0) << "behind row " << row;
      }
      const size_t end = num_rows * (row_bytes + gap_bytes);
      ASSERT_EQ(std::memcmp(got.data() + end, poison + end, row_bytes + gap_bytes), 0) << "behind the last";
    }
  }
}

// A kernel may start while the one in front of it runs, and must not read what that writes, nor write what it
// reads: one kernel, and the two of large clusters and of pairs, behind each other and between small ones.
TEST_F(CudaPromptLinear, ThatOverlapWaitForTheirInput) {
  auto check_chain = [&](int64_t rows, int64_t width) {
    SCOPED_TRACE(format("{} rows of {}", rows, width));
    const Twin start = random_twin(DType::kBF16, {rows, width});
    const Twin w = random_twin(DType::kBF16, {width, width}, 1 / std::sqrt(static_cast<double>(width)));
    const Twin norm_weight = random_twin(DType::kBF16, {width});
    const Twin residual = output_twin(DType::kBF16, {rows, width});
    const Twin ends[] = {output_twin(DType::kBF16, {rows, width}), output_twin(DType::kBF16, {rows, width})};
    auto chain = [&](bool one_by_one) {
      gpu_stream_->copy(ends[0].gpu, start.gpu);
      gpu_stream_->copy(residual.gpu, start.gpu);
      for (int i = 0; i < 5; ++i) {
        const Tensor& out = ends[(i + 1) % 2].gpu;
        issue(ends[i % 2].gpu, w, out);
        if (one_by_one) synchronize();
        if (i % 2 == 1) continue;
        module_->ops->add_rms_norm(
            *gpu_state_,
            *gpu_stream_,
            {.x = out, .residual = residual.gpu, .weight = norm_weight.gpu, .epsilon = 1e-5f, .out = out});
        if (one_by_one) synchronize();
      }
      return download(ends[1]);
    };
    const std::vector<std::byte> expected = chain(true);
    for (int again = 0; again < 10; ++again) EXPECT_EQ(chain(false), expected);
  };
  check_chain(1000, 1024);
  check_chain(8192, 1024);
  check_chain(2048, 6144);
  check_chain(2048, 3072);
}

}  // namespace
}  // namespace llm_dist::kernels
