// Ops on a single row of activations, some of which go out together, beside the CPU's one after the other.
#include <cstring>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {
namespace {

struct Sizes {
  int64_t hidden, attended, inner, out;
};

class CudaRowOps : public CudaLinearTest {
 protected:
  // What stands between the attentions of two layers.
  struct Layer {
    Sizes sizes;
    DType dtype;
    bool f8, wide;
    Twin x, term, residual, gate_up, activated, out;
    Twin norms[2];
    Twin bias;
    std::vector<Twin> dense;
    std::vector<F8Weight> scaled;

    template <typename Pick>
    Weight weight(int i, Pick&& pick) const {
      return f8 ? scaled[static_cast<size_t>(i)].weight(pick)
                : dense_weight(dense[static_cast<size_t>(i)], pick);
    }
  };
  Layer layer_of(Sizes sizes, DType dtype, bool f8, bool wide) {
    Layer layer{.sizes = sizes, .dtype = dtype, .f8 = f8, .wide = wide};
    const auto [hidden, attended, inner, out] = sizes;
    layer.x = random_twin(dtype, {1, attended});
    layer.residual = random_twin(dtype, {1, hidden});
    layer.term = output_twin(dtype, {1, hidden});
    layer.gate_up = output_twin(dtype, {1, 2 * inner});
    layer.activated = output_twin(dtype, {1, inner});
    layer.out = output_twin(wide ? DType::kF32 : dtype, {1, out});
    layer.bias = random_twin(dtype, {hidden});
    for (Twin& norm : layer.norms) norm = random_twin(dtype, {hidden});
    for (auto [n, k] : {std::pair{hidden, attended}, {2 * inner, hidden}, {hidden, inner}, {out, hidden}}) {
      if (f8) {
        layer.scaled.push_back(f8_weight(n, k));
      } else {
        layer.dense.push_back(random_twin(dtype, {n, k}, 1 / std::sqrt(static_cast<double>(k))));
      }
    }
    return layer;
  }
  // Ops [first, last) of the six.
  template <typename Pick>
  static void issue(const OpTable& ops,
                    OpState& state,
                    device::Stream& stream,
                    const Layer& layer,
                    int first,
                    int last,
                    Pick&& pick) {
    const Tensor none;
    auto linear = [&](int i, const Twin& x, const Twin& out, const Tensor& bias) {
      ops.linear(
          state, stream, {.x = pick(x), .weight = layer.weight(i, pick), .bias = bias, .out = pick(out)});
    };
    auto norm = [&](int i) {
      ops.add_rms_norm(state,
                       stream,
                       {.x = pick(layer.term),
                        .residual = pick(layer.residual),
                        .weight = pick(layer.norms[i]),
                        .epsilon = 1e-5f,
                        .out = pick(layer.term)});
    };
    for (int op = first; op < last; ++op) {
      switch (op) {
        case 0: linear(0, layer.x, layer.term, pick(layer.bias)); break;
        case 1: norm(0); break;
        case 2:
          ops.linear_silu_and_mul(state,
                                  stream,
                                  {.x = pick(layer.term),
                                   .weight = layer.weight(1, pick),
                                   .bias = none,
                                   .gate_up = pick(layer.gate_up),
                                   .out = pick(layer.activated)});
          break;
        case 3: linear(2, layer.activated, layer.term, none); break;
        case 4: norm(1); break;
        default: linear(3, layer.term, layer.out, none); break;
      }
    }
  }
  void issue_cpu(const Layer& layer, int first, int last) {
    issue(
        cpu_ops(), *cpu_state_, *cpu_stream_, layer, first, last, [](const Twin& twin) { return twin.cpu; });
  }
  void issue_gpu(const Layer& layer, int first, int last) {
    issue(*module_->ops, *gpu_state_, *gpu_stream_, layer, first, last, [](const Twin& twin) {
      return twin.gpu;
    });
  }
  void expect_all_same(const Layer& layer, int last) {
    synchronize();
    const double far = 8 * tolerance(layer.dtype);
    if (last > 1) expect_same(layer.residual, far);
    if (last > 2) expect_same(layer.activated, far);
    if (last == 1 || last == 4 || last == 5) expect_same(layer.term, far);
    if (last > 5) expect_same(layer.out, far);
  }
  void check(Sizes sizes, DType dtype, bool f8, bool wide) {
    SCOPED_TRACE(format("hidden {}, attended {}, inner {}, out {}; {}, f8 {}, wide {}",
                        sizes.hidden,
                        sizes.attended,
                        sizes.inner,
                        sizes.out,
                        dtype,
                        f8,
                        wide));
    const Layer layer = layer_of(sizes, dtype, f8, wide);
    for (int turn = 0; turn < 3; ++turn) {
      issue_cpu(layer, 0, 6);
      issue_gpu(layer, 0, 6);
    }
    expect_all_same(layer, 6);
  }
  void SetUp() override {
    CudaLinearTest::SetUp();
    if (!IsSkipped()) use_state(LinearKernels::kFastest);
  }
};

TEST_F(CudaRowOps, OfALayerAsOnTheCpu) {
  for (Sizes sizes : {Sizes{4096, 4096, 1792, 6144},
                      {576, 576, 1536, 960},
                      {1000, 40, 16, 7},
                      {8192, 1024, 3584, 520},
                      {2048, 2048, 14336, 32},
                      {1544, 1288, 4104, 1}}) {
    for (DType dtype : {DType::kBF16, DType::kF16}) check(sizes, dtype, false, dtype == DType::kF16);
  }
  for (Sizes sizes : {Sizes{4096, 4096, 1792, 6144}, {576, 576, 1536, 960}, {2048, 512, 14336, 32}}) {
    for (DType dtype : {DType::kBF16, DType::kF16}) check(sizes, dtype, true, dtype == DType::kF16);
  }
}

// Wherever one begins and whatever comes next.
TEST_F(CudaRowOps, OfSomeOfALayer) {
  const Layer layer = layer_of({2048, 1024, 2816, 640}, DType::kBF16, false, true);
  issue_cpu(layer, 0, 6);
  issue_gpu(layer, 0, 6);  // so that every tensor has something
  expect_all_same(layer, 6);
  for (int first = 0; first < 6; ++first) {
    for (int last = first + 1; last <= 6; ++last) {
      SCOPED_TRACE(format("ops [{}, {})", first, last));
      for (const Twin& twin : {layer.term, layer.residual, layer.activated}) upload(twin);
      issue_cpu(layer, first, last);
      issue_gpu(layer, first, last);
      expect_all_same(layer, last);
    }
  }
}

// Rows that shared memory has no room for, and rows that are no whole loads.
TEST_F(CudaRowOps, OthersGoOutAlone) {
  const Layer layers[] = {layer_of({1024, 1024, 1024, 1024}, DType::kBF16, true, false),
                          layer_of({1024, 1024, 1004, 1024}, DType::kBF16, false, false),
                          layer_of({12544, 64, 64, 64}, DType::kBF16, false, false)};
  for (const Layer& layer : layers) {
    issue_cpu(layer, 0, 6);
    issue_gpu(layer, 0, 6);
    expect_all_same(layer, 6);
  }
}

// Each op follows one of another layer.
TEST_F(CudaRowOps, OpsOfTwoLayersInTurns) {
  const Layer layers[] = {layer_of({1024, 1024, 1024, 1024}, DType::kBF16, false, false),
                          layer_of({1024, 1024, 1024, 1024}, DType::kBF16, false, false)};
  for (int op = 0; op < 6; ++op) {
    for (const Layer& layer : layers) {
      issue_cpu(layer, op, op + 1);
      issue_gpu(layer, op, op + 1);
    }
  }
  for (const Layer& layer : layers) expect_all_same(layer, 6);
}

// What one stream has put off goes out on it, whatever a second stream is given meanwhile.
TEST_F(CudaRowOps, OnTwoStreams) {
  const Layer first = layer_of({1024, 1024, 1024, 1024}, DType::kBF16, false, false);
  const Layer second = layer_of({1024, 1024, 1024, 1024}, DType::kBF16, false, false);
  const std::unique_ptr<device::Stream> other = gpu_backend_->make_stream("other");
  issue_cpu(first, 0, 6);
  issue_cpu(second, 0, 6);
  issue_gpu(first, 0, 1);
  issue(*module_->ops, *gpu_state_, *other, second, 0, 1, [](const Twin& twin) { return twin.gpu; });
  for (device::Stream* stream : {gpu_stream_.get(), other.get()})
    ASSERT_TRUE(stream->synchronize(Deadline::after_seconds(60)).ok());
  issue_gpu(first, 1, 6);
  issue_gpu(second, 1, 6);
  expect_all_same(first, 6);
  expect_all_same(second, 6);
}

// A state that goes takes back what it has put off.
TEST_F(CudaRowOps, OfAStateThatGoes) {
  const Layer layer = layer_of({1024, 1024, 1024, 1024}, DType::kBF16, false, false);
  issue_gpu(layer, 0, 1);
  use_state(LinearKernels::kFastest);
  issue_cpu(layer, 0, 6);
  issue_gpu(layer, 0, 6);
  expect_all_same(layer, 6);
}

TEST_F(CudaRowOps, InAGraph) {
  const Layer layer = layer_of({4096, 1024, 1792, 1536}, DType::kBF16, false, false);
  issue_cpu(layer, 0, 6);
  issue_gpu(layer, 0, 6);
  gpu_backend_->begin_capture(*gpu_stream_);
  for (int turn = 0; turn < 3; ++turn) issue_gpu(layer, 0, 6);
  auto graph = gpu_backend_->end_capture(*gpu_stream_);
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  for (int launch = 0; launch < 4; ++launch) {
    (*graph)->launch(*gpu_stream_);
    for (int turn = 0; turn < 3; ++turn) issue_cpu(layer, 0, 6);
  }
  expect_all_same(layer, 6);
}

}  // namespace
}  // namespace llm_dist::kernels
