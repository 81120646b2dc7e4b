// Norms that leave a row's codes of 8 bits, with one scale for all of it, and the prompts' products that take
// them: beside the rows in 16 bits and the products that quantize those.
#include <cstring>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

class CudaNormCodes : public CudaPromptTest {
 protected:
  struct Rows {
    Twin codes;
    Twin scales;
    Twin plain;  // in 16 bits
  };
  // Of the same sums of rows once in codes and once plain; expects the same residual streams of both.
  Rows normed(DType dtype, int64_t m, int64_t hidden) {
    const Twin x = random_twin(dtype, {m, hidden});
    scale_rows(x);
    const Twin residual = random_twin(dtype, {m, hidden});
    scale_rows(residual);
    const Twin residuals[2] = {output_twin(dtype, {m, hidden}), output_twin(dtype, {m, hidden})};
    for (const Twin& each : residuals) gpu_stream_->copy(each.gpu, residual.gpu);
    const Twin weight = random_twin(dtype, {hidden});
    Rows rows{.codes = output_twin(DType::kF8E4M3, {m, hidden}),
              .scales = output_twin(DType::kF32, {1, m}),
              .plain = output_twin(dtype, {m, hidden})};
    AddRmsNormParams params{.x = x.gpu,
                            .residual = residuals[0].gpu,
                            .weight = weight.gpu,
                            .epsilon = 1e-5f,
                            .out = rows.codes.gpu,
                            .out_scales = rows.scales.gpu};
    module_->ops->add_rms_norm(*gpu_state_, *gpu_stream_, params);
    params.residual = residuals[1].gpu;
    params.out = rows.plain.gpu;
    params.out_scales = {};
    module_->ops->add_rms_norm(*gpu_state_, *gpu_stream_, params);
    synchronize();
    EXPECT_EQ(download(residuals[0]), download(residuals[1]));
    return rows;
  }
  bool takes(const Weight& weight, int64_t rows, bool has_bias = false, DType activation = DType::kBF16) {
    return module_->ops->takes_codes(*gpu_state_, weight, has_bias, activation, rows);
  }
};

TEST_F(CudaNormCodes, AreThoseOfTheRows) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (auto [m, hidden] :
         {std::pair<int64_t, int64_t>{1, 128}, {3, 576}, {257, 4096}, {40, 8184}, {5, 8192}}) {
      SCOPED_TRACE(format("{} rows of {} {}", m, hidden, dtype));
      const Rows rows = normed(dtype, m, hidden);
      const std::vector<std::byte> codes = download(rows.codes);
      const std::vector<std::byte> scale_bytes = download(rows.scales);
      std::vector<std::byte> plain_bytes = download(rows.plain);
      Tensor plain = rows.plain.cpu;
      plain.data = plain_bytes.data();
      for (int64_t row = 0; row < m; ++row) {
        float largest = 0;
        for (int64_t i = 0; i < hidden; ++i)
          largest = std::max(largest, static_cast<float>(std::abs(element(plain, row * hidden + i))));
        ASSERT_GT(largest, 0);
        float scale = 0;
        std::memcpy(&scale, scale_bytes.data() + row * 4, sizeof scale);
        ASSERT_EQ(scale, largest / 448.0f) << "row " << row;
        for (int64_t i = row * hidden; i < (row + 1) * hidden; ++i) {
          const float value = static_cast<float>(element(plain, i)) * (448.0f / largest);
          ASSERT_EQ(static_cast<uint8_t>(codes[static_cast<size_t>(i)]), to_f8e4m3(value).bits)
              << "element " << i;
        }
      }
    }
  }
}

TEST_F(CudaNormCodes, OfZerosAreZeros) {
  const Twin zeros = twin_of(DType::kBF16, {2 * 256}, std::vector<double>(512, 0.0));
  const Tensor rows = zeros.gpu.reshaped({2, 256});
  const Twin residual = twin_of(DType::kBF16, {2 * 256}, std::vector<double>(512, 0.0));
  const Twin weight = random_twin(DType::kBF16, {256});
  const Twin codes = output_twin(DType::kF8E4M3, {2, 256});
  const Twin scales = output_twin(DType::kF32, {1, 2});
  module_->ops->add_rms_norm(*gpu_state_,
                             *gpu_stream_,
                             {.x = rows,
                              .residual = residual.gpu.reshaped({2, 256}),
                              .weight = weight.gpu,
                              .epsilon = 1e-5f,
                              .out = codes.gpu,
                              .out_scales = scales.gpu});
  synchronize();
  for (std::byte code : download(codes)) ASSERT_EQ(static_cast<int>(code) & 0x7f, 0);
  const std::vector<std::byte> bytes = download(scales);
  for (size_t row = 0; row < 2; ++row) {
    float scale = 0;
    std::memcpy(&scale, bytes.data() + row * sizeof scale, sizeof scale);
    EXPECT_TRUE(scale >= 0 && scale < 1e-20f) << scale;
  }
}

// Without a gate, with one, and with one that gives codes of groups itself: the bits of products that
// quantize.
TEST_F(CudaNormCodes, AreMultipliedAsTheRowsAre) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (auto [m, k, n] : {std::array<int64_t, 3>{256, 128, 256}, {1000, 384, 1792}, {2048, 1024, 3072}}) {
      SCOPED_TRACE(format("{} rows of {} by [{}, {}]", m, dtype, n, k));
      const F8Weight w = f8_weight(n, k);
      ASSERT_TRUE(takes(w.weight(on_gpu), m, false, dtype));
      const Rows rows = normed(dtype, m, k);
      const Twin products = output_twin(dtype, {m, n});
      auto multiplied = [&](bool codes) {
        module_->ops->linear(*gpu_state_,
                             *gpu_stream_,
                             {.x = codes ? rows.codes.gpu : rows.plain.gpu,
                              .weight = w.weight(on_gpu),
                              .bias = {},
                              .out = products.gpu,
                              .x_scales = codes ? rows.scales.gpu : Tensor{}});
        synchronize();
        return download(products);
      };
      const std::vector<std::byte> expected = multiplied(false);
      EXPECT_EQ(multiplied(true), expected);
      auto gated = [&](bool codes, const Twin& out, const Tensor& out_scales) {
        module_->ops->linear_silu_and_mul(*gpu_state_,
                                          *gpu_stream_,
                                          {.x = codes ? rows.codes.gpu : rows.plain.gpu,
                                           .weight = w.weight(on_gpu),
                                           .bias = {},
                                           .gate_up = products.gpu,
                                           .out = out.gpu,
                                           .x_scales = codes ? rows.scales.gpu : Tensor{},
                                           .out_scales = out_scales});
        synchronize();
        return download(out);
      };
      const Twin out = output_twin(dtype, {m, n / 2});
      const std::vector<std::byte> expected_gated = gated(false, out, {});
      EXPECT_EQ(gated(true, out, {}), expected_gated);
      const Twin codes_out = output_twin(DType::kF8E4M3, {m, n / 2});
      const Twin scales_out = output_twin(DType::kF32, {n / 2 / kCodeGroup, m});
      const std::vector<std::byte> expected_codes = gated(false, codes_out, scales_out.gpu);
      const std::vector<std::byte> expected_scales = download(scales_out);
      EXPECT_EQ(gated(true, codes_out, scales_out.gpu), expected_codes);
      EXPECT_EQ(download(scales_out), expected_scales);
    }
  }
}

TEST_F(CudaNormCodes, AreTakenByProductsOfOurs) {
  const F8Weight w = f8_weight(768, 256);
  const F8Weight uneven = f8_weight(576, 256);
  const Twin dense = random_twin(DType::kBF16, {768, 256});
  use_state(LinearKernels::kFastest);
  EXPECT_TRUE(takes(w.weight(on_gpu), 1024));
  EXPECT_TRUE(takes(w.weight(on_gpu), 1024, false, DType::kF16));
  EXPECT_FALSE(takes(w.weight(on_gpu), 512));
  EXPECT_FALSE(takes(w.weight(on_gpu), 1100));
  EXPECT_FALSE(takes(w.weight(on_gpu), 1024, true));
  EXPECT_FALSE(takes(w.weight(on_gpu), 1024, false, DType::kF32));
  EXPECT_FALSE(takes(uneven.weight(on_gpu), 1024));
  EXPECT_FALSE(takes(dense_weight(dense, on_gpu), 1024));
  use_state(LinearKernels::kLibrary);
  EXPECT_FALSE(takes(w.weight(on_gpu), 1024));
}

// Behind each other, as in a step: codes are not read before they are there, nor overwritten while they are
// read.
TEST_F(CudaNormCodes, ThatOverlapWaitForTheirInput) {
  constexpr int64_t kRows = 2048;
  constexpr int64_t kWidth = 1024;
  const F8Weight w = f8_weight(kWidth, kWidth);
  const Twin start = random_twin(DType::kBF16, {kRows, kWidth});
  scale_rows(start);
  const Twin weight = random_twin(DType::kBF16, {kWidth});
  const Twin rows = output_twin(DType::kBF16, {kRows, kWidth});
  const Twin residual = output_twin(DType::kBF16, {kRows, kWidth});
  const Twin codes = output_twin(DType::kF8E4M3, {kRows, kWidth});
  const Twin scales = output_twin(DType::kF32, {1, kRows});
  auto chain = [&](bool one_by_one) {
    gpu_stream_->copy(rows.gpu, start.gpu);
    gpu_stream_->copy(residual.gpu, start.gpu);
    for (int i = 0; i < 6; ++i) {
      module_->ops->add_rms_norm(*gpu_state_,
                                 *gpu_stream_,
                                 {.x = rows.gpu,
                                  .residual = residual.gpu,
                                  .weight = weight.gpu,
                                  .epsilon = 1e-5f,
                                  .out = codes.gpu,
                                  .out_scales = scales.gpu});
      if (one_by_one) synchronize();
      module_->ops->linear(
          *gpu_state_,
          *gpu_stream_,
          {.x = codes.gpu, .weight = w.weight(on_gpu), .bias = {}, .out = rows.gpu, .x_scales = scales.gpu});
      if (one_by_one) synchronize();
    }
    synchronize();
    return download(rows);
  };
  const std::vector<std::byte> expected = chain(true);
  for (int again = 0; again < 10; ++again) EXPECT_EQ(chain(false), expected);
}

}  // namespace
}  // namespace llm_dist::kernels
