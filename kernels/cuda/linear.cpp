#include "kernels/linear.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/skinny_linear.h"

namespace llm_dist::kernels {
namespace {

// The largest power of two up to 256 that divides every operand's address.
int common_alignment(const MatmulOperands& operands) {
  uintptr_t bits = 256;
  for (const void* data : {operands.x,
                           operands.w,
                           static_cast<const void*>(operands.y),
                           static_cast<const void*>(operands.product)}) {
    bits |= reinterpret_cast<uintptr_t>(data);
  }
  return static_cast<int>(bits & (~bits + 1));
}

bool is_codes(const Tensor& rows) { return rows.dtype == DType::kF8E4M3; }

// Of codes: a scale for each row, not for groups of its columns.
bool is_scaled_by_rows(const Tensor& scales) { return scales && scales.dim(0) == 1; }

// Scales beside rows that are codes.
void check_scales(const Tensor& rows, const Tensor& scales) {
  CHECK(is_codes(rows) == static_cast<bool>(scales) &&
            (!scales || (scales.dtype == DType::kF32 && scales.is_contiguous() &&
                         (is_scaled_by_rows(scales) || scales.dim(0) * kCodeGroup == rows.dim(1)) &&
                         scales.dim(1) == rows.dim(0) && rows.is_contiguous())),
        "scales {} of {}",
        scales.to_string(),
        rows.to_string());
}

// But for the scales of codes, of which shares have a part (check_scales).
void check_linear(const LinearParams& params) {
  check_rows(params.x);
  check_rows(params.out);
  const Weight& weight = params.weight;
  const DType activation = is_codes(params.x) ? params.out.dtype : params.x.dtype;
  const bool scaled = weight.scheme == WeightScheme::kF8E4M3 && activation != DType::kF32;
  CHECK(scaled || (weight.scheme == scheme_of(activation) && !is_codes(params.x)),
        "a weight in {} for {}",
        weight.scheme,
        params.x.to_string());
  CHECK(!scaled || (weight.parts[1].dtype == DType::kF32 && weight.parts[1].numel() == weight.n &&
                    reinterpret_cast<uintptr_t>(weight.parts[1].data) % sizeof(float2) == 0),
        "scales {} for n = {}",
        weight.parts[1].to_string(),
        weight.n);
  CHECK(params.x.dim(1) == weight.k && params.out.dim(1) == weight.n && params.out.dim(0) == params.x.dim(0),
        "{} by [{}, {}] to {}",
        params.x.to_string(),
        weight.n,
        weight.k,
        params.out.to_string());
  CHECK(params.out.dtype == activation || params.out.dtype == DType::kF32, "out {}", params.out.to_string());
  CHECK(!params.bias || (params.bias.numel() == weight.n && params.bias.dtype == activation),
        "bias {}",
        params.bias.to_string());
}

void check_handed(const Tensor& x, const Tensor& scales, const device::HandedRows& rows) {
  if (rows.size == 0) return;
  const std::byte* begin = rows.rows[rows.rank];
  CHECK(x.data == begin && x.is_contiguous() && x.bytes() == rows.size * rows.share_bytes &&
            x.dim(1) * dtype_bytes(x.dtype) == rows.row_bytes &&
            (!scales || scales.data == begin + x.bytes()),
        "{} with scales {} is not where {} ranks hand their rows",
        x.to_string(),
        scales.to_string(),
        rows.size);
}

MatmulOperands operands_of(const LinearParams& params) {
  return {.x = params.x.data,
          .w = params.weight.parts[0].data,
          .bias = params.bias.data,
          .w_scales = static_cast<const float*>(params.weight.parts[1].data),
          .x_scales = static_cast<const float*>(params.x_scales.data),
          .y = params.out.data};
}

MatmulShape shape_of(const LinearParams& params, const MatmulOperands& operands) {
  return {.m = params.x.dim(0),
          .n = params.weight.n,
          .k = params.weight.k,
          .x_stride = params.x.stride(0),
          .y_stride = params.out.stride(0),
          .in = is_codes(params.x) ? params.out.dtype : params.x.dtype,
          .out = params.out.dtype,
          .has_bias = static_cast<bool>(params.bias),
          .f8_weight = params.weight.scheme == WeightScheme::kF8E4M3,
          .x_codes = is_codes(params.x) && is_scaled_by_rows(params.x_scales),
          .grouped_codes = is_codes(params.x) && !is_scaled_by_rows(params.x_scales),
          .alignment = common_alignment(operands)};
}

// Of so many contiguous rows by a weight, wherever they stand.
MatmulShape shape_by(const Weight& weight, int64_t rows, bool has_bias, DType activation) {
  return {.m = rows,
          .n = weight.n,
          .k = weight.k,
          .x_stride = weight.k,
          .y_stride = weight.n,
          .in = activation,
          .out = activation,
          .has_bias = has_bias,
          .f8_weight = weight.scheme == WeightScheme::kF8E4M3,
          .alignment = common_alignment({.w = weight.parts[0].data})};
}

void run(CudaOpState& state,
         const MatmulShape& shape,
         const MatmulOperands& operands,
         device::CudaStream& stream) {
  CHECK(!shape.has_codes() || state.matmul().takes_prompt(shape),
        "no kernel takes codes of {} rows by [{}, {}]",
        shape.m,
        shape.n,
        shape.k);
  if (state.fused_row().put_off(shape, operands, stream) || !stream.enter()) return;
  const LinearKernels kernels = state.options().linear;
  const bool by_rows = kernels == LinearKernels::kFastest || kernels == LinearKernels::kOwn;
  if (by_rows && shape.m == 1 && takes_skinny_linear(shape))
    return stream.check(launch_skinny_linear(shape, operands, stream.handle()), "linear");
  state.matmul().run(shape, operands, stream);
}

}  // namespace

void linear_of_handed_cuda(OpState& state,
                           device::Stream& stream,
                           const LinearParams& params,
                           const device::HandedRows& rows) {
  check_linear(params);
  check_scales(params.x, params.x_scales);
  check_handed(params.x, params.x_scales, rows);
  device::CudaStream& cuda = device::as_cuda(stream);
  if (params.out.numel() == 0) return;
  MatmulOperands operands = operands_of(params);
  operands.handed = rows;
  run(as_cuda_state(state), shape_of(params, operands), operands, cuda);
}

void linear_cuda(OpState& state, device::Stream& stream, const LinearParams& params) {
  linear_of_handed_cuda(state, stream, params, {});
}

bool linear_terms_cuda(OpState& state, device::Stream& stream, const LinearTermsParams& params) {
  check_linear(params.product);
  check_scales(params.product.x, params.product.x_scales);
  device::CudaStream& cuda = device::as_cuda(stream);
  if (params.product.out.numel() == 0) return false;
  CHECK(params.terms.size > 1 && 2 * params.product.weight.n <= params.terms.row_bytes &&
            (params.terms.part_columns == 0 || params.product.out.dim(0) > 1),
        "terms of {} ranks, {} bytes a row, {} columns a part, for {}",
        params.terms.size,
        params.terms.row_bytes,
        params.terms.part_columns,
        params.product.out.to_string());
  CudaOpState& cuda_state = as_cuda_state(state);
  MatmulOperands operands = operands_of(params.product);
  const MatmulShape shape = shape_of(params.product, operands);
  const bool sends =
      shape.m == 1 ? cuda_state.fused_row().sends(shape) : cuda_state.matmul().sends(shape, params.terms);
  if (sends) operands.terms = params.terms;
  run(cuda_state, shape, operands, cuda);
  return sends;
}

bool makes_shares_cuda(const OpState& state, const Weight& weight, bool has_bias, DType activation) {
  const auto& cuda_state = static_cast<const CudaOpState&>(state);
  const int64_t rows = cuda_state.options().max_tokens;
  return cuda_state.matmul().prefers_shares(shape_by(weight, rows, has_bias, activation), 1);
}

bool hands_rows_cuda(const OpState& state, const Weight& weight, bool has_bias, DType activation, int ranks) {
  MatmulShape shape = shape_by(weight, ranks * kHandedRows, has_bias, activation);
  shape.x_codes = shape.f8_weight;
  return static_cast<const CudaOpState&>(state).matmul().hands(shape, ranks);
}

bool takes_codes_cuda(
    const OpState& state, const Weight& weight, bool has_bias, DType activation, int64_t rows) {
  MatmulShape shape = shape_by(weight, rows, has_bias, activation);
  shape.x_codes = true;
  return static_cast<const CudaOpState&>(state).matmul().takes_prompt(shape);
}

bool gives_codes_cuda(const OpState& state,
                      const Weight& gate_up,
                      const Weight& reader,
                      bool has_bias,
                      DType activation,
                      int64_t rows) {
  MatmulShape gives = shape_by(gate_up, rows, has_bias, activation);
  MatmulShape takes = shape_by(reader, rows, has_bias, activation);
  gives.gated = true;
  gives.y_stride = gives.columns();
  gives.grouped_codes = takes.grouped_codes = true;
  const Matmul& matmul = static_cast<const CudaOpState&>(state).matmul();
  return gives.columns() == takes.k && matmul.takes_prompt(gives) && matmul.takes_prompt(takes);
}

void linear_shares_cuda(OpState& state, device::Stream& stream, const LinearSharesParams& params) {
  CHECK(params.num_outs > 0 && params.num_outs <= LinearSharesParams::kMostOuts &&
            params.x.dim(0) % params.num_outs == 0,
        "{} in {} shares",
        params.x.to_string(),
        params.num_outs);
  if (const Tensor all = params.whole()) {
    linear_cuda(state,
                stream,
                {.x = params.x,
                 .weight = params.weight,
                 .bias = params.bias,
                 .out = all,
                 .x_scales = params.x_scales});
    return;
  }
  check_scales(params.x, params.x_scales);
  std::array<void*, LinearSharesParams::kMostOuts> outs{};
  bool alike = true;
  int alignment = 256;
  MatmulOperands operands;
  for (int i = 0; i < params.num_outs; ++i) {
    const LinearParams run = params.run(i);
    check_linear(run);
    operands = operands_of(run);
    alignment = std::min(alignment, common_alignment(operands));
    alike = alike && run.out.dtype == params.outs[0].dtype && run.out.stride(0) == params.outs[0].stride(0);
    outs[static_cast<size_t>(i)] = params.outs[static_cast<size_t>(i)].data;
  }
  Matmul& matmul = as_cuda_state(state).matmul();
  MatmulShape shape = shape_of(params.run(0), operands);
  shape.m = params.x.dim(0);
  shape.alignment = alignment;
  if (!alike || !matmul.prefers_shares(shape, params.num_outs)) {
    CHECK(!shape.has_codes(), "codes for products of {} rows one by one", params.run(0).x.dim(0));
    for (int i = 0; i < params.num_outs; ++i) linear_cuda(state, stream, params.run(i));
    return;
  }
  device::CudaStream& cuda = device::as_cuda(stream);
  if (!cuda.enter()) return;
  operands.x = params.x.data;
  operands.x_scales = static_cast<const float*>(params.x_scales.data);
  matmul.run_shares(
      shape, operands, std::span(outs).first(static_cast<size_t>(params.num_outs)), params.first, cuda);
}

void linear_silu_and_mul_of_handed_cuda(OpState& state,
                                        device::Stream& stream,
                                        const LinearSiluAndMulParams& params,
                                        const device::HandedRows& rows) {
  const Tensor& out = params.out;
  const LinearParams product{.x = params.x,
                             .weight = params.weight,
                             .bias = params.bias,
                             .out = params.gate_up,
                             .x_scales = params.x_scales};
  check_linear(product);
  check_scales(params.x, params.x_scales);
  check_handed(params.x, params.x_scales, rows);
  check_rows(out);
  check_scales(out, params.out_scales);
  const DType activation = params.gate_up.dtype;
  CHECK(params.gate_up.is_contiguous() && (is_codes(params.x) || params.x.dtype == activation) &&
            (is_codes(out) ? params.out_scales.dim(0) * kCodeGroup == out.dim(1) : out.dtype == activation) &&
            out.dim(0) == params.x.dim(0) && 2 * out.dim(1) == params.weight.n,
        "{} to {}",
        params.gate_up.to_string(),
        out.to_string());
  device::CudaStream& cuda = device::as_cuda(stream);
  if (out.numel() == 0) return;
  MatmulOperands operands = operands_of(product);
  operands.product = std::exchange(operands.y, out.data);
  operands.y_scales = static_cast<float*>(params.out_scales.data);
  operands.handed = rows;
  MatmulShape shape = shape_of(product, operands);
  shape.gated = true;
  shape.y_stride = out.stride(0);
  shape.grouped_codes = is_codes(out);
  run(as_cuda_state(state), shape, operands, cuda);
}

void linear_silu_and_mul_cuda(OpState& state, device::Stream& stream, const LinearSiluAndMulParams& params) {
  linear_silu_and_mul_of_handed_cuda(state, stream, params, {});
}

}  // namespace llm_dist::kernels
