// Products of a prompt's rows without a gate by the kernel of ours, beside the CPU's in float.
#include <cstring>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

class CudaPromptLinear : public CudaPromptTest {
 protected:
  static Weight weight_on_gpu(const Twin& w) { return dense_weight(w, on_gpu); }
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

// The same by weights in 8-bit floats.
class CudaF8PromptLinear : public CudaPromptLinear {
 protected:
  void issue_f8(const Tensor& x, const F8Weight& w, const Tensor& out) {
    module_->ops->linear(
        *gpu_state_, *gpu_stream_, {.x = x, .weight = w.weight(on_gpu), .bias = {}, .out = out});
  }
  Twin expected_of(const Twin& x_seen, const F8Weight& w) {
    const Twin expected = output_twin(DType::kF32, {x_seen.cpu.dim(0), w.n});
    cpu_ops().linear(*cpu_state_,
                     *cpu_stream_,
                     {.x = x_seen.cpu, .weight = w.weight(on_cpu), .bias = {}, .out = expected.cpu});
    return expected;
  }
  void check_f8(DType dtype, int64_t m, int64_t n, int64_t k) {
    SCOPED_TRACE(format("{} rows of {} by [{}, {}]", m, dtype, n, k));
    const F8Weight w = f8_weight(n, k);
    const Twin x = random_twin(dtype, {m, k});
    scale_rows(x);
    const Twin seen = as_floats(x);
    round_rows(seen);
    const Twin out = output_twin(dtype, {m, n});
    issue_f8(x.gpu, w, out.gpu);
    synchronize();
    // A value between two codes may fall to either side.
    expect_near(out, expected_of(seen, w), 2e-2);
  }
};

// What AsOnTheCpu, OfLargeClustersAsOnTheCpu and OfNarrowTilesAsOnTheCpu have of 16 bits.
TEST_F(CudaF8PromptLinear, AsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {256, 257, 300, 384, 1000, 2048}) {
      for (auto [n, k] : {std::pair<int64_t, int64_t>{256, 128}, {768, 384}, {256, 4096}})
        check_f8(dtype, m, n, k);
    }
    check_f8(dtype, 2300, 4096, 256);
    check_f8(dtype, 257, 14336, 384);
    for (int64_t k : {128, 256, 640}) check_f8(dtype, 512, 1024, k);
    check_f8(dtype, 1024, 7680, 384);
    check_f8(dtype, 2048, 6144, 256);
    check_f8(dtype, 8192, 1024, 384);
    for (int64_t k : {128, 256, 640}) check_f8(dtype, 512, 768, k);
    check_f8(dtype, 2048, 3072, 384);
    check_f8(dtype, 2000, 3072, 256);
    check_f8(dtype, 2048, 2560, 384);
    check_f8(dtype, 4096, 2560, 128);
  }
}

// Products of 8-bit floats cut what does not fit 13 bits of their sums: of positive terms it adds up, to 1 %
// of so many columns, where it is not the sums of some columns that are added in float.
TEST_F(CudaF8PromptLinear, LoseLittleOfLongSums) {
  constexpr int64_t kColumns = 16384;
  F8Weight w = f8_weight(256, kColumns);
  auto* codes = static_cast<uint8_t*>(w.codes.cpu.data);
  for (int64_t i = 0; i < w.n * w.k; ++i) codes[i] &= 0x7f;
  upload(w.codes);
  const Twin x = random_twin(DType::kF16, {256, kColumns});
  for (int64_t i = 0; i < x.cpu.numel(); ++i) set_element(x.cpu, i, std::abs(element(x.cpu, i)));
  upload(x);
  const Twin seen = as_floats(x);
  round_rows(seen);
  const Twin out = output_twin(DType::kF16, {256, w.n});
  issue_f8(x.gpu, w, out.gpu);
  expect_near(out, expected_of(seen, w), 2e-3);
}

TEST_F(CudaF8PromptLinear, FromManyRowsOn) {
  use_state(LinearKernels::kFastest);
  for (int64_t m : {1023, 1024, 1025, 1536}) check_f8(DType::kBF16, m, 512, 256);
}

TEST_F(CudaF8PromptLinear, OtherShapesAreLeftToTheLibrary) {
  check_f8(DType::kBF16, 300, 272, 128);
  check_f8(DType::kBF16, 300, 256, 144);
}

// Codes of x and their scales stand in the same memory for each product: it is not written while the one in
// front reads it, nor are scales read that were there before.
TEST_F(CudaF8PromptLinear, ThatOverlapWaitForTheirInput) {
  for (auto [rows, width] : {std::pair<int64_t, int64_t>{1000, 1024}, {2048, 6144}, {2048, 3072}}) {
    SCOPED_TRACE(format("{} rows of {}", rows, width));
    const Twin start = random_twin(DType::kBF16, {rows, width});
    scale_rows(start);
    const F8Weight w = f8_weight(width, width);
    const Twin ends[] = {output_twin(DType::kBF16, {rows, width}), output_twin(DType::kBF16, {rows, width})};
    auto chain = [&](bool one_by_one) {
      gpu_stream_->copy(ends[0].gpu, start.gpu);
      for (int i = 0; i < 5; ++i) {
        issue_f8(ends[i % 2].gpu, w, ends[(i + 1) % 2].gpu);
        if (one_by_one) synchronize();
      }
      return download(ends[1]);
    };
    const std::vector<std::byte> expected = chain(true);
    for (int again = 0; again < 10; ++again) EXPECT_EQ(chain(false), expected);
  }
}

}  // namespace
}  // namespace llm_dist::kernels
