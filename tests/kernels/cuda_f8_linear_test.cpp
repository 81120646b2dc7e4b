// Linear layers with weights in 8-bit floats on a GPU beside the CPU's: the library's kernels and our own.
#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/kernels/cuda_linear_checks.h"

namespace llm_dist::kernels {
namespace {

using CudaF8Linear = CudaLinear;

class CudaF8LinearEven : public CudaLinear, public testing::WithParamInterface<LinearKernels> {
 protected:
  void SetUp() override {
    CudaLinear::SetUp();
    if (!IsSkipped()) use_state(GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Of,
                         CudaF8LinearEven,
                         testing::Values(LinearKernels::kEven, LinearKernels::kEvenWide));

TEST_P(CudaF8LinearEven, FewRows) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {1, 7, 9, 17, 32}) {
      for (bool wide : {false, true}) {
        check_f8_streamed(dtype, wide, m, 130, 16);
        check_f8_streamed(dtype, wide, m, 62, 1008);
        check_f8_streamed(dtype, wide, m, 64, 16384);
        check_f8_streamed(dtype, wide, m, 190, 8208);
      }
      check_f8_streamed(dtype, m % 2 == 0, m, 1536, 4096);
    }
    check_f8_streamed(dtype, false, 5, 14336, 1024);
    check_f8_streamed(dtype, true, 31, 9000, 576);
  }
}

// Strips wide and narrow, in ranges and in parts, alone and in pairs; of 64 rows and less, 96 and less, and
// more, which take stages of their own; a last strip and a last step that are not whole or not there.
using CudaF8LinearOfMoreRows = CudaF8LinearEven;

INSTANTIATE_TEST_SUITE_P(Of, CudaF8LinearOfMoreRows, testing::ValuesIn(kOwnKernels));

TEST_P(CudaF8LinearOfMoreRows, AsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {33, 64, 65, 88, 97, 128}) {
      const bool wide = m % 2 == 1;
      check_f8_streamed(dtype, wide, m, 130, 16);
      check_f8_streamed(dtype, !wide, m, 62, 1008);
      check_f8_streamed(dtype, wide, m, 520, 2064);
      check_f8_streamed(dtype, !wide, m, 72, 8208);
    }
    check_f8_streamed(dtype, false, 40, 9000, 272);
    check_f8_streamed(dtype, true, 100, 17000, 144);
  }
}

TEST_F(CudaF8Linear, OneRow) {
  use_state(LinearKernels::kFastest);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (bool wide : {false, true}) {
      for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 1},
                          {27, 27},
                          {62, 40},
                          {130, 16},
                          {577, 576},
                          {96, 1536},
                          {4096, 4096},
                          {1024, 14336},
                          {9001, 528},
                          {28672, 1024}})
        check_f8(dtype, wide, 1, n, k, Rounds::kNothing);
    }
  }
}

TEST_F(CudaF8Linear, OfFewRowsByOurKernels) {
  use_state(LinearKernels::kFastest);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {2, 7, 8, 9, 16, 17, 31, 32}) {
      for (bool wide : {false, true}) {
        check_f8_streamed(dtype, wide, m, 130, 16);
        check_f8_streamed(dtype, wide, m, 62, 1008);
        for (int64_t k : {1024, 2048, 4096, 8192}) check_f8_streamed(dtype, wide, m, 576, k);
      }
    }
    check_f8_streamed(dtype, false, 5, 14336, 1024);
    check_f8_streamed(dtype, true, 31, 9000, 576);
  }
}

// Of a row only one element in every 256 columns is not zero: products of 8-bit floats drop nothing of a sum
// then, and what is off is what the parts of x do not hold.
TEST_F(CudaF8Linear, OfFewRowsLeaveXAsItIs) {
  use_state(LinearKernels::kFastest);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {2, 9, 32}) {
      const F8Weight w = f8_weight(130, 1024);
      const Twin x = random_twin(dtype, {m, w.k});
      for (int64_t i = 0; i < m * w.k; ++i) {
        if (i % 256 != i / w.k * 7 % 256) set_element(x.cpu, i, 0);
      }
      check_f8_rows(x, w, 1e-5);
    }
  }
}

// An element that scales the others of its row down, and counts for nothing itself.
TEST_F(CudaF8Linear, OfFewRowsWithLargeElements) {
  use_state(LinearKernels::kFastest);
  constexpr int64_t kAt = 77;
  F8Weight w = f8_weight(130, 1024);
  for (int64_t row = 0; row < w.n; ++row) static_cast<uint8_t*>(w.codes.cpu.data)[row * w.k + kAt] = 0;
  upload(w.codes);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const Twin x = random_twin(dtype, {5, w.k});
    for (int64_t row = 0; row < 5; ++row) set_element(x.cpu, row * w.k + kAt, 3000);
    check_f8_rows(x, w, 3e-3);
  }
}

TEST_F(CudaF8Linear, OfFewRowsThatAreNoNumbers) {
  use_state(LinearKernels::kFastest);
  const F8Weight w = f8_weight(130, 1024);
  const double infinity = std::numeric_limits<double>::infinity();
  for (double value : {infinity, -infinity, std::nan("")}) {
    const Twin x = random_twin(DType::kBF16, {2, w.k});
    set_element(x.cpu, w.k + 5, value);
    const Twin out = run_f8_rows(x, w);
    const std::vector<std::byte> bytes = download(out);
    const auto* floats = reinterpret_cast<const float*>(bytes.data());
    for (int64_t i = 0; i < w.n; ++i) {
      EXPECT_TRUE(std::isfinite(floats[i]));
      EXPECT_FALSE(std::isfinite(floats[w.n + i])) << value;
    }
  }
}

// There is no memory for parts of x: row by row.
TEST_F(CudaF8Linear, ThatNobodyAnnounced) {
  OpStateOptions options = options_;
  options.f8_weights = false;
  gpu_state_.reset();
  gpu_state_ = module_->ops->make_state(*gpu_backend_, options).value();
  for (int64_t m : {1, 5, 40}) check_f8(DType::kBF16, false, m, 130, 1024, Rounds::kNothing);
}

TEST_F(CudaF8Linear, ThatNobodyAnnouncedOfMoreRowsThanAGridHas) {
  constexpr int64_t kRows = 65'537;
  OpStateOptions options = options_;
  options.f8_weights = false;
  options.max_tokens = kRows;
  options.max_features = 16;
  cpu_state_ = cpu_ops().make_state(*cpu_backend_, options).value();
  gpu_state_.reset();
  gpu_state_ = module_->ops->make_state(*gpu_backend_, options).value();
  check_f8(DType::kBF16, false, kRows, 8, 16, Rounds::kNothing);
}

TEST_F(CudaF8Linear, OfManyRows) {
  use_state(LinearKernels::kFastest);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {33, 64, 65, 100, 300, 2048}) {
      check_f8(dtype, false, m, 576, 1536, Rounds::kRows);
      check_f8(dtype, true, m, 1024, 4096, Rounds::kRows);
    }
  }
}

// No kernel of the library's and none of ours for few rows: x is not rounded.
TEST_F(CudaF8Linear, OfAnyShape) {
  use_state(LinearKernels::kFastest);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {2, 9, 70}) {
      check_f8(dtype, false, m, 50, 27, Rounds::kNothing);
      check_f8(dtype, true, m, 27, 50, Rounds::kNothing);
    }
    check_f8(dtype, false, 70, 577, 576, Rounds::kNothing);
  }
}

TEST_F(CudaF8Linear, ByTheLibraryAlone) {
  use_state(LinearKernels::kLibrary);
  for (int64_t m : {1, 3, 16, 60, 300}) check_f8(DType::kBF16, false, m, 576, 1536, Rounds::kRows);
}

TEST_F(CudaF8Linear, ByKernelsThatWereTriedOut) {
  const std::string cache = testing::TempDir() + "llm-dist-f8-cache-" + std::to_string(getpid());
  setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  std::filesystem::file_time_type written;
  for (int run = 0; run < 2; ++run) {
    use_state(LinearKernels::kFastest);
    gpu_state_->start_tuning();
    check_f8(DType::kBF16, false, 5, 1536, 4096, Rounds::kSums);
    check_f8(DType::kBF16, false, 30, 1536, 4096, Rounds::kSums);
    check_f8(DType::kBF16, false, 60, 1536, 4096, Rounds::kRows);
    check_f8(DType::kBF16, false, 300, 1536, 4096, Rounds::kRows);
    gpu_state_->end_tuning();
    // The second run takes what the first has found, and has nothing to write.
    const std::filesystem::directory_iterator files(cache + "/llm-dist");
    ASSERT_NE(files, std::filesystem::directory_iterator());
    if (run == 0) written = std::filesystem::last_write_time(files->path());
    EXPECT_EQ(std::filesystem::last_write_time(files->path()), written);
    EXPECT_EQ(lines_of(files->path()), 4 + 3);
  }
  std::filesystem::remove_all(cache);
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace llm_dist::kernels
