// Products on a GPU whose rows go to several places, beside the CPU's in float.
#include <cstring>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

struct SharesCase {
  DType dtype = DType::kBF16;
  int shares;
  int64_t rows;  // of each
  int64_t n, k;
  int first = 0;
  bool bias = false;
  bool f8 = false;  // the weight is in 8-bit floats
};

class CudaLinearShares : public CudaLinearTest {
 protected:
  // Each place has a row behind the share and some columns behind every row, which stay as they were.
  void check(const SharesCase& test) {
    constexpr int64_t kGap = 8;
    SCOPED_TRACE(format("{} shares from {} on, {} rows of {} by [{}, {}], bias {}, f8 {}",
                        test.shares,
                        test.first,
                        test.rows,
                        test.dtype,
                        test.n,
                        test.k,
                        test.bias,
                        test.f8));
    const int64_t m = test.shares * test.rows;
    const Twin x = random_twin(test.dtype, {m, test.k});
    if (test.f8) scale_rows(x);
    const Twin dense = random_twin(test.dtype, {test.n, test.k}, 1 / std::sqrt(static_cast<double>(test.k)));
    const F8Weight coded = f8_weight(test.f8 ? test.n : 1, test.f8 ? test.k : 1);
    auto weight = [&](auto pick) { return test.f8 ? coded.weight(pick) : dense_weight(dense, pick); };
    const Twin bias = random_twin(test.dtype, {test.n});
    const Twin x_seen = as_floats(x);
    if (test.f8) round_rows(x_seen);
    const Twin bias_seen = as_floats(bias);
    const Twin expected = output_twin(DType::kF32, {m, test.n});
    cpu_ops().linear(*cpu_state_,
                     *cpu_stream_,
                     {.x = x_seen.cpu,
                      .weight = weight([](const Twin& twin) { return twin.cpu; }),
                      .bias = test.bias ? bias_seen.cpu : Tensor{},
                      .out = expected.cpu});
    LinearSharesParams params{.x = x.gpu,
                              .weight = weight([](const Twin& twin) { return twin.gpu; }),
                              .bias = test.bias ? bias.gpu : Tensor{},
                              .outs = {},
                              .num_outs = test.shares,
                              .first = test.first};
    std::vector<Twin> places;
    for (int i = 0; i < test.shares; ++i) {
      places.push_back(output_twin(test.dtype, {test.rows + 1, test.n + kGap}));
      params.outs[static_cast<size_t>(i)] = places.back().gpu.rows(0, test.rows).narrow(1, 0, test.n);
    }
    module_->ops->linear_shares(*gpu_state_, *gpu_stream_, params);
    synchronize();
    // Of codes, a value between two may fall to either side.
    const double rounding = test.f8 ? 2e-2 : test.dtype == DType::kF32 ? 2e-4 : 4 * tolerance(test.dtype);
    for (int i = 0; i < test.shares; ++i) {
      const Twin& place = places[static_cast<size_t>(i)];
      const std::vector<std::byte> bytes = download(place);
      Tensor got = place.cpu;
      got.data = const_cast<std::byte*>(bytes.data());
      for (int64_t at = 0; at < got.numel(); ++at) {
        const int64_t row = at / (test.n + kGap);
        const int64_t column = at % (test.n + kGap);
        if (row < test.rows && column < test.n) {
          const double want = element(expected.cpu, (i * test.rows + row) * test.n + column);
          ASSERT_NEAR(want, element(got, at), rounding * (1 + std::abs(want)))
              << "share " << i << ", row " << row << ", column " << column;
        } else {
          const auto size = static_cast<size_t>(dtype_bytes(test.dtype));
          const size_t begin = static_cast<size_t>(at) * size;
          ASSERT_EQ(std::memcmp(bytes.data() + begin, static_cast<std::byte*>(place.cpu.data) + begin, size),
                    0)
              << "share " << i << ", written behind it at row " << row << ", column " << column;
        }
      }
    }
  }
};

TEST_F(CudaLinearShares, OfManyRowsByOneKernel) {
  if (!is_hopper()) GTEST_SKIP() << "no kernel of ours for prompts";
  use_state(LinearKernels::kOwn);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    check({.dtype = dtype, .shares = 2, .rows = 128, .n = 256, .k = 64, .first = 1});
    check({.dtype = dtype, .shares = 2, .rows = 513, .n = 768, .k = 576, .first = 1});
    check({.dtype = dtype, .shares = 3, .rows = 129, .n = 256, .k = 320, .first = 2});
    check({.dtype = dtype, .shares = 4, .rows = 256, .n = 1024, .k = 128, .first = 3});
    check({.dtype = dtype, .shares = 8, .rows = 33, .n = 512, .k = 256, .first = 5});
    check({.dtype = dtype, .shares = 2, .rows = 513, .n = 768, .k = 640, .first = 1, .f8 = true});
    check({.dtype = dtype, .shares = 3, .rows = 129, .n = 256, .k = 384, .first = 2, .f8 = true});
  }
  // More tiles than processors take at once, and shares that do not fill a turn: stored while the next tile
  // is multiplied, in one step and over several.
  for (int64_t k : {64, 576, 1088}) check({.shares = 2, .rows = 700, .n = 4096, .k = k, .first = 1});
}

TEST_F(CudaLinearShares, SaysWhichWeightsOneKernelTakes) {
  const Twin dense = random_twin(DType::kBF16, {512, 192});
  const Twin odd = random_twin(DType::kBF16, {520, 192});
  const F8Weight f8 = f8_weight(512, 256);
  const F8Weight odd_f8 = f8_weight(512, 192);
  auto gpu = [](const Twin& twin) { return twin.gpu; };
  auto makes = [&](const Weight& weight, bool has_bias) {
    return module_->ops->makes_shares(*gpu_state_, weight, has_bias, DType::kBF16);
  };
  use_state(LinearKernels::kFastest);
  EXPECT_EQ(makes(dense_weight(dense, gpu), false), is_hopper());
  EXPECT_FALSE(makes(dense_weight(dense, gpu), true));
  EXPECT_FALSE(makes(dense_weight(odd, gpu), false));
  EXPECT_EQ(makes(f8.weight(gpu), false), is_hopper());
  EXPECT_FALSE(makes(odd_f8.weight(gpu), false));
  use_state(LinearKernels::kLibrary);
  EXPECT_FALSE(makes(dense_weight(dense, gpu), false));
}

TEST_F(CudaLinearShares, OfAnyShapeOneAfterTheOther) {
  for (LinearKernels kernels : {LinearKernels::kFastest, LinearKernels::kOwn, LinearKernels::kLibrary}) {
    use_state(kernels);
    check({.shares = 2, .rows = 1, .n = 256, .k = 64, .first = 1});
    check({.shares = 3, .rows = 9, .n = 264, .k = 72, .first = 1});
    check({.dtype = DType::kF16, .shares = 2, .rows = 40, .n = 50, .k = 27});
    check({.shares = 2, .rows = 200, .n = 256, .k = 128, .first = 1, .bias = true});
    check({.dtype = DType::kF32, .shares = 2, .rows = 150, .n = 256, .k = 64});
  }
}

// Places that follow each other are one.
TEST_F(CudaLinearShares, SideBySideAreOneProduct) {
  constexpr int64_t kRows = 96;
  const Twin x = random_twin(DType::kBF16, {kRows, 128});
  const Twin w = random_twin(DType::kBF16, {256, 128}, 0.1);
  const Twin outs[] = {output_twin(DType::kBF16, {kRows, 256}), output_twin(DType::kBF16, {kRows, 256})};
  const Weight weight = dense_weight(w, [](const Twin& twin) { return twin.gpu; });
  const LinearSharesParams params{
      .x = x.gpu,
      .weight = weight,
      .bias = {},
      .outs = {outs[0].gpu.rows(0, 32), outs[0].gpu.rows(32, 32), outs[0].gpu.rows(64, 32)},
      .num_outs = 3,
      .first = 1};
  EXPECT_EQ(params.whole().data, outs[0].gpu.data);
  EXPECT_EQ(params.whole().dim(0), kRows);
  module_->ops->linear_shares(*gpu_state_, *gpu_stream_, params);
  module_->ops->linear(
      *gpu_state_, *gpu_stream_, {.x = x.gpu, .weight = weight, .bias = {}, .out = outs[1].gpu});
  EXPECT_EQ(download(outs[0]), download(outs[1]));
}

// A kernel may start while the one in front of it runs, and must not read what that writes, nor write what it
// reads.
TEST_F(CudaLinearShares, ThatOverlapWaitForTheirInput) {
  constexpr int64_t kRows = 1024;
  constexpr int64_t kWidth = 1024;
  use_state(LinearKernels::kOwn);
  const Twin start = random_twin(DType::kBF16, {kRows, kWidth});
  const Twin w = random_twin(DType::kBF16, {kWidth, kWidth}, 1 / std::sqrt(double{kWidth}));
  const Twin ends[] = {output_twin(DType::kBF16, {kRows, kWidth}),
                       output_twin(DType::kBF16, {kRows, kWidth})};
  auto chain = [&](bool one_by_one) {
    gpu_stream_->copy(ends[0].gpu, start.gpu);
    for (int i = 0; i < 9; ++i) {
      const Tensor& out = ends[(i + 1) % 2].gpu;
      module_->ops->linear_shares(*gpu_state_,
                                  *gpu_stream_,
                                  {.x = ends[i % 2].gpu,
                                   .weight = dense_weight(w, [](const Twin& twin) { return twin.gpu; }),
                                   .bias = {},
                                   .outs = {out.rows(kRows / 2, kRows / 2), out.rows(0, kRows / 2)},
                                   .num_outs = 2,
                                   .first = i % 2});
      if (one_by_one) synchronize();
    }
    return download(ends[1]);
  };
  const std::vector<std::byte> expected = chain(true);
  for (int again = 0; again < 10; ++again) EXPECT_EQ(chain(false), expected);
}

}  // namespace
}  // namespace llm_dist::kernels
