#include "kernels/cpu/linear.h"

#include "kernels/cpu/linear_dense.h"
#include "kernels/cpu/linear_f8.h"
#include "kernels/cpu/linear_quantized.h"
#include "kernels/cpu/ops.h"
#include "src/device/cpu/cpu_stream.h"

namespace llm_dist::kernels {
namespace {

bool is_row_matrix(const Tensor& tensor, int64_t rows, int64_t columns) {
  return tensor.rank == 2 && tensor.dim(0) == rows && tensor.dim(1) == columns &&
         (columns == 1 || tensor.stride(1) == 1);
}

void check_linear(const CpuOpState& state, const LinearParams& params) {
  const Weight& weight = params.weight;
  const int64_t tokens = params.x.dim(0);
  CHECK(is_row_matrix(params.x, tokens, weight.k), "x {} for k = {}", params.x.to_string(), weight.k);
  CHECK(is_row_matrix(params.out, tokens, weight.n), "out {} for n = {}", params.out.to_string(), weight.n);
  CHECK(params.out.dtype == params.x.dtype || params.out.dtype == DType::kF32,
        "out {}",
        params.out.to_string());
  CHECK(!params.bias || (params.bias.numel() == weight.n && params.bias.dtype == params.x.dtype &&
                         params.bias.is_contiguous()),
        "bias {} for n = {}",
        params.bias.to_string(),
        weight.n);
  CHECK_LE(tokens, state.options().max_tokens);
  CHECK_LE(weight.k, state.options().max_features);
  CHECK(weight.parts[0] || weight.n == 0, "a linear layer without weights");
  CHECK(!has_row_scales(weight.scheme) ||
            (weight.parts[1].dtype == DType::kF32 && weight.parts[1].numel() == weight.n),
        "scales {} for n = {}",
        weight.parts[1].to_string(),
        weight.n);
}

}  // namespace

void linear_cpu(OpState& state, device::Stream& stream, const LinearParams& params) {
  CpuOpState& cpu = as_cpu(state);
  check_linear(cpu, params);
  CHECK(!params.x_scales, "codes of 8 bits on a CPU");
  if (params.x.dim(0) == 0 || params.weight.n == 0) return;
  device::CpuStream& queue = device::as_cpu(stream);
  if (is_quantized(params.weight.scheme)) {
    queue.enqueue([&cpu, params] { run_quantized_linear(cpu, params); });
    return;
  }
  if (params.weight.scheme == WeightScheme::kF8E4M3) {
    queue.enqueue([&cpu, params] { run_f8_linear(cpu, params); });
    return;
  }
  queue.enqueue([&cpu, &queue, params] {
    Status status = run_dense_linear(cpu, params);
    if (!status.ok()) queue.fail(std::move(status));
  });
}

void linear_shares_cpu(OpState& state, device::Stream& stream, const LinearSharesParams& params) {
  if (const Tensor all = params.whole()) {
    linear_cpu(state, stream, {.x = params.x, .weight = params.weight, .bias = params.bias, .out = all});
    return;
  }
  for (int i = 0; i < params.num_outs; ++i) linear_cpu(state, stream, params.run(i));
}

// As two ops: the products are still in cache when they are activated.
void linear_silu_and_mul_cpu(OpState& state, device::Stream& stream, const LinearSiluAndMulParams& params) {
  linear_cpu(
      state, stream, {.x = params.x, .weight = params.weight, .bias = params.bias, .out = params.gate_up});
  silu_and_mul_cpu(state, stream, {.gate_up = params.gate_up, .out = params.out});
}

Status prepare_weight_cpu(OpState& state, device::Stream& stream, Weight& weight) {
  CpuOpState& cpu = as_cpu(state);
  if (!is_quantized(weight.scheme) || weight.packed) return ok_status();
  if (weight.k % scheme_traits(weight.scheme).block_values != 0) {
    return invalid_argument(format("{} weight with {} input features: not whole blocks of {}",
                                   to_string(weight.scheme),
                                   weight.k,
                                   scheme_traits(weight.scheme).block_values));
  }
  if (weight.k > cpu.options().max_features) {
    return invalid_argument(format(
        "a weight with {} input features; the ops were made for {}", weight.k, cpu.options().max_features));
  }
  device::as_cpu(stream).enqueue([&cpu, plain = weight] { pack_weight(cpu, plain); });
  weight.packed = true;
  return ok_status();
}

}  // namespace llm_dist::kernels
