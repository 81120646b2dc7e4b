// Products of a single row with the norm in front and the rotation behind in the same kernel, beside the
// CPU's ops one after the other.
#include <cmath>
#include <limits>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

class CudaFusedRow : public CudaLinearTest {
 protected:
  struct Case {
    int64_t hidden;
    Heads heads;
    DType dtype;
    DType cache_dtype;
    bool f8;
    bool has_bias;
    int32_t slot;
  };
  // What stands in front of an attention.
  struct Layer {
    Case of;
    Twin term, residual, norm, bias, qkv, position, slot, table, k, v;
    Twin dense;
    F8Weight scaled;

    template <typename Pick>
    Weight weight(Pick&& pick) const {
      return of.f8 ? scaled.weight(pick) : dense_weight(dense, pick);
    }
  };
  Layer layer_of(const Case& of) {
    const int64_t columns = (of.heads.q + int64_t{2} * of.heads.kv) * of.heads.dim;
    return {.of = of,
            .term = random_twin(of.dtype, {1, of.hidden}),
            .residual = random_twin(of.dtype, {1, of.hidden}, 3),
            .norm = random_twin(of.dtype, {of.hidden}),
            .bias = random_twin(of.dtype, {columns}),
            .qkv = output_twin(of.dtype, {1, columns}),
            .position = ints({17}),
            .slot = ints({of.slot}),
            .table = random_twin(DType::kF32, {20, of.heads.dim}),
            .k = output_twin(of.cache_dtype, {3, of.heads.kv, 16, of.heads.dim}),
            .v = output_twin(of.cache_dtype, {3, of.heads.kv, 16, of.heads.dim}),
            .dense = random_twin(of.f8 ? DType::kF32 : of.dtype,
                                 {columns, of.f8 ? 1 : of.hidden},
                                 1 / std::sqrt(static_cast<double>(of.hidden))),
            .scaled = f8_weight(columns, of.f8 ? of.hidden : 16)};
  }
  template <typename Pick>
  static void issue(
      const OpTable& ops, OpState& state, device::Stream& stream, const Layer& layer, Pick&& pick) {
    ops.add_rms_norm(state,
                     stream,
                     {.x = pick(layer.term),
                      .residual = pick(layer.residual),
                      .weight = pick(layer.norm),
                      .epsilon = 1e-5f,
                      .out = pick(layer.term)});
    ops.linear(state,
               stream,
               {.x = pick(layer.term),
                .weight = layer.weight(pick),
                .bias = layer.of.has_bias ? pick(layer.bias) : Tensor(),
                .out = pick(layer.qkv)});
    ops.rope_append(state,
                    stream,
                    {.qkv = pick(layer.qkv),
                     .positions = pick(layer.position),
                     .kv_slots = pick(layer.slot),
                     .cos_sin = pick(layer.table),
                     .k_cache = pick(layer.k),
                     .v_cache = pick(layer.v),
                     .num_heads = layer.of.heads.q,
                     .num_kv_heads = layer.of.heads.kv});
  }
  void issue_cpu(const Layer& layer) {
    issue(cpu_ops(), *cpu_state_, *cpu_stream_, layer, [](const Twin& twin) { return twin.cpu; });
  }
  void issue_gpu(const Layer& layer) {
    issue(*module_->ops, *gpu_state_, *gpu_stream_, layer, [](const Twin& twin) { return twin.gpu; });
  }
  void expect_all_same(const Layer& layer) {
    synchronize();
    const double far = 8 * tolerance(layer.of.dtype);
    expect_same(layer.residual, far);
    expect_same(layer.term, far);
    expect_same(layer.qkv, far);
    // A value that both sides round differently may be a code apart.
    const double far_in_cache = std::max(far, 2 * tolerance(layer.of.cache_dtype));
    expect_same(layer.k, far_in_cache);
    expect_same(layer.v, far_in_cache);
  }
  template <typename Make>
  void multiply_both(const Twin& x, Make&& weight, const Twin& out) {
    run_both(&OpTable::linear, [&](auto pick) {
      return LinearParams{.x = pick(x), .weight = weight(pick), .bias = {}, .out = pick(out)};
    });
  }
  void linear_both(const Twin& x, const F8Weight& weight, const Twin& out) {
    multiply_both(x, [&](auto pick) { return weight.weight(pick); }, out);
  }
  void SetUp() override {
    CudaLinearTest::SetUp();
    if (!IsSkipped()) use_state(LinearKernels::kFastest);
  }
};

TEST_F(CudaFusedRow, NormProductAndRotationAsOnTheCpu) {
  for (const Case& of : {Case{4096, {32, 8, 128}, DType::kBF16, DType::kBF16, true, false, 21},
                         Case{4096, {32, 8, 128}, DType::kBF16, DType::kBF16, false, false, 21},
                         Case{4096, {16, 4, 128}, DType::kBF16, DType::kF8E4M3, true, true, 47},
                         Case{3072, {16, 4, 96}, DType::kBF16, DType::kF8E4M3, false, true, 47},
                         Case{576, {9, 3, 64}, DType::kF16, DType::kF16, true, false, 0},
                         Case{1000, {9, 3, 64}, DType::kF16, DType::kF16, false, true, 0},
                         Case{8192, {8, 1, 128}, DType::kBF16, DType::kBF16, true, true, 16},
                         Case{1040, {3, 1, 80}, DType::kF16, DType::kF8E4M3, true, true, 5},
                         Case{512, {64, 8, 80}, DType::kBF16, DType::kBF16, true, false, 7},
                         Case{64, {1, 1, 2}, DType::kBF16, DType::kBF16, true, false, 3},
                         Case{8, {1, 1, 2}, DType::kBF16, DType::kBF16, false, false, 3},
                         Case{2048, {32, 8, 128}, DType::kBF16, DType::kBF16, true, true, -1},
                         Case{9216, {4, 2, 64}, DType::kBF16, DType::kBF16, false, false, 40}}) {
    SCOPED_TRACE(format("hidden {}, heads {} {} {}, {}, f8 {}, slot {}",
                        of.hidden,
                        of.heads.q,
                        of.heads.kv,
                        of.heads.dim,
                        of.dtype,
                        of.f8,
                        of.slot));
    const Layer layer = layer_of(of);
    for (int turn = 0; turn < 3; ++turn) {
      issue_cpu(layer);
      issue_gpu(layer);
    }
    expect_all_same(layer);
  }
}

TEST_F(CudaFusedRow, InAGraph) {
  const Layer layer = layer_of({4096, {32, 8, 128}, DType::kBF16, DType::kBF16, true, false, 33});
  issue_cpu(layer);
  issue_gpu(layer);
  gpu_backend_->begin_capture(*gpu_stream_);
  for (int turn = 0; turn < 3; ++turn) issue_gpu(layer);
  auto graph = gpu_backend_->end_capture(*gpu_stream_);
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  for (int launch = 0; launch < 4; ++launch) {
    (*graph)->launch(*gpu_stream_);
    for (int turn = 0; turn < 3; ++turn) issue_cpu(layer);
  }
  expect_all_same(layer);
}

// Rows of any length and products of any width, an odd one among them.
TEST_F(CudaFusedRow, ProductsOfManyShapes) {
  for (int64_t k : {16, 264, 512, 1008, 1024, 5120, 14336, 18944, 28672}) {
    for (int64_t n : {1, 2, 7, 264, 4097, 8451}) {
      if (n * k > 40'000'000) continue;
      for (DType dtype : {DType::kBF16, DType::kF16}) {
        SCOPED_TRACE(format("n {}, k {}, {}", n, k, dtype));
        const Twin x = random_twin(dtype, {1, k});
        const Twin out = output_twin(k == 5120 ? DType::kF32 : dtype, {1, n});
        linear_both(x, f8_weight(n, k), out);
        expect_same(out, tolerance(dtype));
        const Twin dense = random_twin(dtype, {n, k}, 1 / std::sqrt(static_cast<double>(k)));
        multiply_both(x, [&](auto pick) { return dense_weight(dense, pick); }, out);
        expect_same(out, tolerance(dtype));
      }
    }
  }
}

// What f16 could not hold as it is.
TEST_F(CudaFusedRow, SmallAndLargeRows) {
  for (double size : {1e-36, 1e-20, 1e-6, 1.0, 1e5, 1e20, 1e34}) {
    SCOPED_TRACE(size);
    const F8Weight weight = f8_weight(64, 4096);
    const Twin x = random_twin(DType::kBF16, {1, 4096}, size);
    set_element(x.cpu, 77, 0);
    set_element(x.cpu, 78, size * 1e-6);
    upload(x);
    const Twin out = output_twin(DType::kF32, {1, 64});
    linear_both(x, weight, out);
    const std::vector<std::byte> bytes = download(out);
    Tensor seen = out.cpu;
    seen.data = const_cast<std::byte*>(bytes.data());
    for (int64_t i = 0; i < 64; ++i)
      ASSERT_NEAR(element(out.cpu, i) / size, element(seen, i) / size, 1e-3) << "element " << i;
  }
  const F8Weight weight = f8_weight(64, 4096);
  const Twin out = output_twin(DType::kF32, {1, 64});
  const Twin zeros = twin_of(DType::kBF16, {1, 4096}, std::vector<double>(4096));
  linear_both(zeros, weight, out);
  expect_same(out, 0);
}

// What is not a number does not become one.
TEST_F(CudaFusedRow, WhatIsNotFinite) {
  for (double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    SCOPED_TRACE(value);
    const F8Weight weight = f8_weight(64, 1024);
    const Twin x = random_twin(DType::kBF16, {1, 1024});
    set_element(x.cpu, 1000, value);
    upload(x);
    const Twin out = output_twin(DType::kF32, {1, 64});
    linear_both(x, weight, out);
    const std::vector<std::byte> bytes = download(out);
    const auto* seen = reinterpret_cast<const float*>(bytes.data());
    for (int i = 0; i < 64; ++i) ASSERT_FALSE(std::isfinite(seen[i])) << "element " << i << ": " << seen[i];
  }
}

// Apart, the norm's row is rounded in between: some element has other bits. Also, the same each time.
TEST_F(CudaFusedRow, IsWhatRuns) {
  if (!is_hopper()) GTEST_SKIP() << "no such kernel for " << gpu_backend_->description();
  const Layer layer = layer_of({4096, {32, 8, 128}, DType::kBF16, DType::kBF16, true, false, 33});
  auto run = [&] {
    for (const Twin& twin : {layer.term, layer.residual}) upload(twin);
    issue_gpu(layer);
    return download(layer.qkv);
  };
  const std::vector<std::byte> first = run();
  EXPECT_EQ(first, run());
  use_state(LinearKernels::kFastest, false);
  EXPECT_NE(first, run());
}

}  // namespace
}  // namespace llm_dist::kernels
