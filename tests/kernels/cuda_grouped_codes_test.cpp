// Codes of 8 bits between a prompt's gated projection and the product that reads it, each group of a row's
// columns with a scale of its own, beside the CPU's in float.
#include <cstring>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

struct CodesCase {
  DType dtype = DType::kBF16;
  int64_t m, k, inner, n;  // [m, k] by [2 inner, k], and what that gives by [n, inner]
  int shares = 1;          // of the rows of the last result
};

class CudaGroupedCodes : public CudaPromptTest {
 protected:
  bool gives_codes(const Weight& gate_up,
                   const Weight& reader,
                   int64_t rows,
                   bool has_bias = false,
                   DType activation = DType::kBF16) {
    return module_->ops->gives_codes(*gpu_state_, gate_up, reader, has_bias, activation, rows);
  }
  // What codes [m, inner] and scales on the GPU stand for.
  Twin decoded(const Twin& codes, const Twin& scales) {
    const int64_t m = codes.cpu.dim(0);
    const int64_t inner = codes.cpu.dim(1);
    const std::vector<std::byte> code_bytes = download(codes);
    const std::vector<std::byte> scale_bytes = download(scales);
    const auto* factors = reinterpret_cast<const float*>(scale_bytes.data());
    auto host = std::make_shared<TestTensor>(DType::kF32, std::initializer_list<int64_t>{m, inner});
    for (int64_t i = 0; i < m * inner; ++i) {
      const float code = to_float(Float8E4M3{static_cast<uint8_t>(code_bytes[static_cast<size_t>(i)])});
      host->set(i, double{code} * double{factors[i % inner / kCodeGroup * m + i / inner]});
    }
    return twin_of(std::move(host));
  }
  // Of each group the largest takes the largest code.
  void expect_filled(const Twin& codes) {
    const std::vector<std::byte> bytes = download(codes);
    for (size_t group = 0; group < bytes.size(); group += kCodeGroup) {
      int largest = 0;
      for (size_t i = group; i < group + kCodeGroup; ++i)
        largest = std::max(largest, static_cast<int>(bytes[i]) & 0x7f);
      ASSERT_EQ(largest, 0x7e) << "group " << group / kCodeGroup;
    }
  }
  void check(const CodesCase& test) {
    const auto [dtype, m, k, inner, n, shares] = test;
    SCOPED_TRACE(format(
        "{} rows of {} by [{}, {}] and [{}, {}], {} shares", m, dtype, 2 * inner, k, n, inner, shares));
    const F8Weight gate_up = f8_weight(2 * inner, k);
    const F8Weight reader = f8_weight(n, inner);
    ASSERT_TRUE(gives_codes(gate_up.weight(on_gpu), reader.weight(on_gpu), m, false, dtype));
    const Twin x = random_twin(dtype, {m, k});
    scale_rows(x);
    const Twin seen = as_floats(x);
    round_rows(seen);
    const Twin products = output_twin(dtype, {m, 2 * inner});
    const Twin products_expected = output_twin(DType::kF32, {m, 2 * inner});
    const Twin gated_expected = output_twin(DType::kF32, {m, inner});
    const Twin codes = output_twin(DType::kF8E4M3, {m, inner});
    const Twin scales = output_twin(DType::kF32, {inner / kCodeGroup, m});
    cpu_ops().linear_silu_and_mul(*cpu_state_,
                                  *cpu_stream_,
                                  {.x = seen.cpu,
                                   .weight = gate_up.weight(on_cpu),
                                   .bias = {},
                                   .gate_up = products_expected.cpu,
                                   .out = gated_expected.cpu});
    module_->ops->linear_silu_and_mul(*gpu_state_,
                                      *gpu_stream_,
                                      {.x = x.gpu,
                                       .weight = gate_up.weight(on_gpu),
                                       .bias = {},
                                       .gate_up = products.gpu,
                                       .out = codes.gpu,
                                       .out_scales = scales.gpu});
    synchronize();
    const Twin gated = decoded(codes, scales);
    // Half a step of a code is 6 % at most, and x was rounded on both sides.
    for (int64_t i = 0; i < gated.cpu.numel(); ++i) {
      const double want = element(gated_expected.cpu, i);
      ASSERT_NEAR(want, element(gated.cpu, i), 3e-2 + 8e-2 * std::abs(want)) << "element " << i;
    }
    expect_filled(codes);

    const Twin expected = output_twin(DType::kF32, {m, n});
    cpu_ops().linear(*cpu_state_,
                     *cpu_stream_,
                     {.x = gated.cpu, .weight = reader.weight(on_cpu), .bias = {}, .out = expected.cpu});
    const Twin out = output_twin(dtype, {m, n});
    LinearSharesParams params{.x = codes.gpu,
                              .weight = reader.weight(on_gpu),
                              .bias = {},
                              .outs = {},
                              .num_outs = shares,
                              .first = shares - 1,
                              .x_scales = scales.gpu};
    // From the last one on, so that they are not one tensor.
    const int64_t rows = m / shares;
    for (int i = 0; i < shares; ++i)
      params.outs[static_cast<size_t>(i)] = out.gpu.rows((shares - 1 - i) * rows, rows);
    if (shares > 1) {
      module_->ops->linear_shares(*gpu_state_, *gpu_stream_, params);
    } else {
      module_->ops->linear(*gpu_state_, *gpu_stream_, params.run(0));
    }
    synchronize();
    const std::vector<std::byte> bytes = download(out);
    Tensor got = out.cpu;
    got.data = const_cast<std::byte*>(bytes.data());
    for (int64_t i = 0; i < m * n; ++i) {
      const int64_t share = shares - 1 - i / n / rows;
      const double want = element(expected.cpu, (share * rows + i / n % rows) * n + i % n);
      ASSERT_NEAR(want, element(got, i), (4e-3 + 2 * tolerance(dtype)) * (1 + std::abs(want)))
          << "element " << i;
    }
  }
};

// Rows that no tile ends with, one step and many, clusters of eight and of two, narrow tiles.
TEST_F(CudaGroupedCodes, AsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {256, 257, 1000}) {
      check({.dtype = dtype, .m = m, .k = 128, .inner = 128, .n = 256});
      check({.dtype = dtype, .m = m, .k = 384, .inner = 896, .n = 512});
    }
    check({.dtype = dtype, .m = 512, .k = 256, .inner = 4096, .n = 1024});
    check({.dtype = dtype, .m = 512, .k = 256, .inner = 640, .n = 768});
    check({.dtype = dtype, .m = 2048, .k = 128, .inner = 1024, .n = 3072});
  }
}

TEST_F(CudaGroupedCodes, InSharesAsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    check({.dtype = dtype, .m = 1024, .k = 256, .inner = 512, .n = 512, .shares = 2});
    check({.dtype = dtype, .m = 387, .k = 128, .inner = 256, .n = 256, .shares = 3});
  }
}

TEST_F(CudaGroupedCodes, AreGivenWhereBothProductsAreOurs) {
  const F8Weight gate_up = f8_weight(1024, 256);
  const F8Weight reader = f8_weight(256, 512);
  const Twin dense = random_twin(DType::kBF16, {1024, 256});
  const F8Weight uneven = f8_weight(2 * 576, 256);
  const F8Weight uneven_reader = f8_weight(256, 576);
  auto gives = [&](int64_t rows, bool has_bias = false) {
    return gives_codes(gate_up.weight(on_gpu), reader.weight(on_gpu), rows, has_bias);
  };
  use_state(LinearKernels::kFastest);
  EXPECT_TRUE(gives(1024));
  EXPECT_TRUE(gives(2048));
  EXPECT_FALSE(gives(1));
  EXPECT_FALSE(gives(512));
  EXPECT_FALSE(gives(1100));
  EXPECT_FALSE(gives(1024, true));
  EXPECT_FALSE(gives_codes(gate_up.weight(on_gpu), reader.weight(on_gpu), 1024, false, DType::kF32));
  EXPECT_FALSE(gives_codes(dense_weight(dense, on_gpu), reader.weight(on_gpu), 1024));
  EXPECT_FALSE(gives_codes(uneven.weight(on_gpu), uneven_reader.weight(on_gpu), 1024));
  use_state(LinearKernels::kLibrary);
  EXPECT_FALSE(gives(1024));
}

// Behind each other, as in a step: what the first one gives is not read before it is there, nor overwritten
// while it is read.
TEST_F(CudaGroupedCodes, ThatOverlapWaitForTheirInput) {
  constexpr int64_t kRows = 2048;
  constexpr int64_t kWidth = 1024;
  constexpr int64_t kInner = 3584;
  const F8Weight gate_up = f8_weight(2 * kInner, kWidth);
  const F8Weight reader = f8_weight(kWidth, kInner);
  const Twin start = random_twin(DType::kBF16, {kRows, kWidth});
  scale_rows(start);
  const Twin products = output_twin(DType::kBF16, {kRows, 2 * kInner});
  const Twin codes = output_twin(DType::kF8E4M3, {kRows, kInner});
  const Twin scales = output_twin(DType::kF32, {kInner / kCodeGroup, kRows});
  const Twin rows = output_twin(DType::kBF16, {kRows, kWidth});
  auto chain = [&](bool one_by_one) {
    gpu_stream_->copy(rows.gpu, start.gpu);
    for (int i = 0; i < 4; ++i) {
      module_->ops->linear_silu_and_mul(*gpu_state_,
                                        *gpu_stream_,
                                        {.x = rows.gpu,
                                         .weight = gate_up.weight(on_gpu),
                                         .bias = {},
                                         .gate_up = products.gpu,
                                         .out = codes.gpu,
                                         .out_scales = scales.gpu});
      if (one_by_one) synchronize();
      module_->ops->linear(*gpu_state_,
                           *gpu_stream_,
                           {.x = codes.gpu,
                            .weight = reader.weight(on_gpu),
                            .bias = {},
                            .out = rows.gpu,
                            .x_scales = scales.gpu});
      if (one_by_one) synchronize();
    }
    return download(rows);
  };
  const std::vector<std::byte> expected = chain(true);
  for (int again = 0; again < 10; ++again) EXPECT_EQ(chain(false), expected);
}

}  // namespace
}  // namespace llm_dist::kernels
