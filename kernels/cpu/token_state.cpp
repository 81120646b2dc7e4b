// Reads and writes of the token history, and the gather of rows that are sampled.
#include <cstring>

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_views.h"
#include "src/device/cpu/cpu_stream.h"

namespace llm_dist::kernels {
namespace {

int32_t& history_at(const Rows& history, int32_t slot, int32_t position) {
  CHECK(slot < history.count && position >= 0 && position < history.width,
        "history[{}, {}] of [{}, {}]",
        slot,
        position,
        history.count,
        history.width);
  return history.row<int32_t>(slot)[position];
}

Rows history_rows(const Tensor& history) {
  CHECK_EQ(history.dtype, DType::kI32);
  return rows_of(history);
}

}  // namespace

void gather_tokens_cpu(OpState&, device::Stream& stream, const GatherTokensParams& params) {
  const Rows history = history_rows(params.history);
  const int64_t n = params.ids.dim(0);
  const int32_t* slots = i32_vector(params.slots, n);
  const int32_t* positions = i32_vector(params.positions, n);
  i32_vector(params.ids, n);
  device::as_cpu(stream).enqueue([=, ids = params.ids.as<int32_t>()] {
    for (int64_t t = 0; t < n; ++t) {
      ids[t] = slots[t] < 0 ? 0 : history_at(history, slots[t], positions[t]);
    }
  });
}

void scatter_tokens_cpu(OpState&, device::Stream& stream, const ScatterTokensParams& params) {
  const Rows history = history_rows(params.history);
  const int64_t n = params.slots.dim(0);
  const int64_t stride = params.token_stride;
  CHECK(n == 0 || params.tokens.numel() > (n - 1) * stride,
        "{} tokens at stride {} of {}",
        n,
        stride,
        params.tokens.to_string());
  const int32_t* slots = i32_vector(params.slots, n);
  const int32_t* positions = i32_vector(params.positions, n);
  device::as_cpu(stream).enqueue([=, tokens = params.tokens.as<int32_t>()] {
    for (int64_t i = 0; i < n; ++i) {
      if (slots[i] >= 0) history_at(history, slots[i], positions[i]) = tokens[i * stride];
    }
  });
}

void gather_rows_cpu(OpState& state, device::Stream& stream, const GatherRowsParams& params) {
  const Rows x = rows_of(params.x);
  const Rows out = rows_of(params.out);
  CHECK_EQ(x.dtype, out.dtype);
  CHECK_EQ(x.width, out.width);
  const int32_t* rows = i32_vector(params.rows, out.count);
  const int threads = as_cpu(state).threads();
  device::as_cpu(stream).enqueue(
      [=, x_begin = params.x_begin, whole = params.x_whole > 0 ? params.x_whole : x.count] {
        const auto bytes = static_cast<size_t>(x.width * dtype_bytes(x.dtype));
        parallel_for(threads, out.count, rows_per_thread(x.width), [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) {
            CHECK(rows[i] < whole, "row {} of {}", rows[i], whole);
            const int64_t row = rows[i] - x_begin;
            if (rows[i] < 0 || row < 0 || row >= x.count) {
              std::memset(out.row<std::byte>(i), 0, bytes);
            } else {
              std::memcpy(out.row<std::byte>(i), x.row<std::byte>(row), bytes);
            }
          }
        });
      });
}

}  // namespace llm_dist::kernels
