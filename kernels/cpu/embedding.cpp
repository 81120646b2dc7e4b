// Embedding lookup: rows are converted one by one through a float row in the thread's scratch, or straight
// into the output where that is float.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cpp"  // NOLINT
#include "kernels/cpu/simd_targets.h"
// clang-format off: the rest comes after the list of targets
#include <hwy/foreach_target.h>
#include "kernels/cpu/simd-inl.h"
// clang-format on

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/row_views.h"
#include "src/device/cpu/cpu_stream.h"

HWY_BEFORE_NAMESPACE();
namespace llm_dist::kernels::HWY_NAMESPACE {

template <typename T>
void convert_row(const float* from, T* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_floats(load_floats(from + i), to + i);
  if (i < n) store_floats_partly(load_floats_partly(from + i, n - i), to + i, n - i);
}

void convert_row_any(const float* from, DType dtype, void* to, int64_t n) {
  if (dtype == DType::kBF16) {
    convert_row(from, static_cast<BFloat16*>(to), n);
  } else {
    convert_row(from, static_cast<Float16*>(to), n);
  }
}

}  // namespace llm_dist::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm_dist::kernels {
namespace {

HWY_EXPORT(convert_row_any);

void embed_row(const Weight& table, int64_t row, const Rows& out, int64_t t, float* scratch) {
  const auto bytes = static_cast<size_t>(out.width * dtype_bytes(out.dtype));
  if (row < 0 || row >= table.n) {
    std::memset(out.row<std::byte>(t), 0, bytes);
  } else if (out.dtype == DType::kF32) {
    dequantize_weight_row(table, row, out.row<float>(t));
  } else {
    dequantize_weight_row(table, row, scratch);
    HWY_DYNAMIC_DISPATCH(convert_row_any)(scratch, out.dtype, out.row<std::byte>(t), out.width);
  }
}

}  // namespace

void embedding_cpu(OpState& state, device::Stream& stream, const EmbeddingParams& params) {
  const Rows out = activation_rows(params.out);
  CHECK_EQ(params.table.k, out.width);
  CpuOpState* cpu = &as_cpu(state);
  CHECK_LE(out.width * 4, static_cast<int64_t>(cpu->thread_scratch(0).size()));
  const int32_t* ids = i32_vector(params.ids, out.count);
  device::as_cpu(stream).enqueue([=, table = params.table, vocab_begin = params.vocab_begin] {
    parallel_for(
        cpu->threads(), out.count, rows_per_thread(out.width), [&](int64_t begin, int64_t end, int i) {
          auto* scratch = reinterpret_cast<float*>(cpu->thread_scratch(i).data());
          for (int64_t t = begin; t < end; ++t) embed_row(table, ids[t] - vocab_begin, out, t, scratch);
        });
  });
}

}  // namespace llm_dist::kernels
#endif
