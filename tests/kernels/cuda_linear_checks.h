// Products on a GPU beside the CPU's, as the tests of linear layers check them.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/kernels/cuda_linear_fixture.h"

namespace llm_dist::kernels {

class CudaLinear : public CudaLinearTest {
 protected:
  void check_linear(DType dtype, bool wide, int64_t m, int64_t n, int64_t k) {
    Twin x = random_twin(dtype, {m, k});
    Twin w = random_twin(dtype, {n, k}, 1 / std::sqrt(static_cast<double>(k)));
    Twin bias = random_twin(dtype, {n});
    DType out_type = wide ? DType::kF32 : dtype;
    Twin out = output_twin(out_type, {m, n});
    run_both(&OpTable::linear, [&](auto pick) {
      return LinearParams{.x = pick(x),
                          .weight = dense_weight(w, pick),
                          .bias = wide ? Tensor{} : pick(bias),
                          .out = pick(out)};
    });
    expect_same(out, out_type == DType::kF32 ? 2e-4 : 2 * tolerance(dtype));
  }
  // By our kernels for few rows. Of more than 32 rows these store eight columns of 16 bits at a time: n
  // becomes whole eights then.
  void check_streamed(DType dtype, bool wide, int64_t m, int64_t n, int64_t k) {
    if (stores_eights(wide, m)) n = (n + 7) / 8 * 8;
    SCOPED_TRACE(format("{} rows of {} by [{}, {}], wide {}", m, dtype, n, k, wide));
    check_linear(dtype, wide, m, n, k);
    expect_streamed(m, n, k);
  }
  static bool stores_eights(bool wide, int64_t m) { return m > 32 && !wide; }
  // Likewise; n odd, the rows of the result one element apart. None where ours take no such thing.
  void check_odd(DType dtype, bool wide, int64_t m, int64_t n, int64_t k) {
    if (!stores_eights(wide, m)) check_apart(dtype, wide, m, n, k, 1);
  }
  // Likewise; what lies between the rows of the result and behind the last one is not written. With a bias,
  // which the library adds to no floats.
  void check_apart(DType dtype, bool wide, int64_t m, int64_t n, int64_t k, int64_t gap = 8) {
    SCOPED_TRACE(format("{} rows of {} by [{}, {}], wide {}, {} elements apart", m, dtype, n, k, wide, gap));
    const bool has_bias = !wide || is_hopper();
    const Twin x = random_twin(dtype, {m, k});
    const Twin w = random_twin(dtype, {n, k}, 1 / std::sqrt(static_cast<double>(k)));
    const Twin bias = random_twin(dtype, {n});
    const Twin apart = output_twin(wide ? DType::kF32 : dtype, {m + 1, n + gap});
    const Twin out = apart.cut([&](const Tensor& all) { return all.rows(0, m).narrow(1, 0, n); });
    run_both(&OpTable::linear, [&](auto pick) {
      return LinearParams{.x = pick(x),
                          .weight = dense_weight(w, pick),
                          .bias = has_bias ? pick(bias) : Tensor{},
                          .out = pick(out)};
    });
    expect_same(apart, wide ? 2e-4 : 2 * tolerance(dtype));
    expect_streamed(m, n, k);
  }
  void check_f8(DType dtype, bool wide, int64_t m, int64_t n, int64_t k, Rounds rounds) {
    SCOPED_TRACE(format("{} rows of {} by [{}, {}], wide {}", m, dtype, n, k, wide));
    const F8Weight w = f8_weight(n, k);
    const Twin given = random_twin(dtype, {m, k});
    scale_rows(given);
    const Twin seen = as_floats(given);
    if (rounds == Rounds::kRows) round_rows(seen);
    const Twin bias = random_twin(dtype, {n});
    const Twin bias_seen = as_floats(bias);
    const DType out_type = wide ? DType::kF32 : dtype;
    const Twin out = output_twin(out_type, {m, n});
    const Twin expected = output_twin(DType::kF32, {m, n});
    auto cpu = [](const Twin& twin) { return twin.cpu; };
    auto gpu = [](const Twin& twin) { return twin.gpu; };
    cpu_ops().linear(*cpu_state_,
                     *cpu_stream_,
                     {.x = seen.cpu,
                      .weight = w.weight(cpu),
                      .bias = wide ? Tensor{} : bias_seen.cpu,
                      .out = expected.cpu});
    module_->ops->linear(
        *gpu_state_,
        *gpu_stream_,
        {.x = given.gpu, .weight = w.weight(gpu), .bias = wide ? Tensor{} : bias.gpu, .out = out.gpu});
    synchronize();
    // Where both round x, a value between two codes may fall to either side. Of sums, 0.004 off at worst was
    // seen.
    const double of_out = wide ? 3e-4 : 2 * CudaOpTest::tolerance(dtype);
    expect_near(out,
                expected,
                rounds == Rounds::kRows   ? 2e-2
                : rounds == Rounds::kSums ? 6e-3 + of_out
                                          : of_out);
  }
  // As check_streamed().
  void check_f8_streamed(DType dtype, bool wide, int64_t m, int64_t n, int64_t k) {
    if (stores_eights(wide, m)) n = (n + 7) / 8 * 8;
    SCOPED_TRACE(format("{} rows of {} by [{}, {}], wide {}", m, dtype, n, k, wide));
    check_f8(dtype, wide, m, n, k, m > 32 ? Rounds::kRows : Rounds::kSums);
    expect_streamed(m, n, k, true);
  }
  // Floats, of rows of x that the CPU's side has.
  Twin run_f8_rows(const Twin& x, const F8Weight& w) {
    upload(x);
    const Twin out = output_twin(DType::kF32, {x.cpu.dim(0), w.n});
    module_->ops->linear(*gpu_state_,
                         *gpu_stream_,
                         {.x = x.gpu,
                          .weight = w.weight([](const Twin& twin) { return twin.gpu; }),
                          .bias = {},
                          .out = out.gpu});
    synchronize();
    return out;
  }
  void check_f8_rows(const Twin& x, const F8Weight& w, double tolerance) {
    SCOPED_TRACE(format("{} rows of {}", x.cpu.dim(0), x.cpu.dtype));
    const Twin out = run_f8_rows(x, w);
    const Twin seen = as_floats(x);
    const Twin expected = output_twin(DType::kF32, {x.cpu.dim(0), w.n});
    cpu_ops().linear(*cpu_state_,
                     *cpu_stream_,
                     {.x = seen.cpu,
                      .weight = w.weight([](const Twin& twin) { return twin.cpu; }),
                      .bias = {},
                      .out = expected.cpu});
    expect_near(out, expected, tolerance);
  }
  static int lines_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    return static_cast<int>(
        std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n'));
  }
};

}  // namespace llm_dist::kernels
