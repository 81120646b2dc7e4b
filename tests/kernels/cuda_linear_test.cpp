// The linear layers on a GPU beside the CPU's: the library's kernels and our own, tuned and not.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "kernels/cuda/device/overlapped_launch.h"
#include "tests/kernels/cuda_linear_checks.h"

namespace llm_dist::kernels {
namespace {

TEST_F(CudaLinear, AsOnTheCpu) {
  for (DType dtype : kActivationTypes) {
    for (auto [m, n, k] : {std::array<int64_t, 3>{0, 64, 64},
                           {1, 576, 576},
                           {7, 960, 576},
                           {3, 24, 40},
                           {33, 1536, 576},
                           {300, 128, 1536},
                           {5, 1000, 4096},
                           {37, 960, 576},
                           {37, 3072, 576},
                           {37, 576, 1536},
                           {1, 49152, 576},
                           {2, 641, 1000},
                           {3, 130, 8},
                           {4, 4096, 4096}}) {
      for (bool wide : {false, true}) check_linear(dtype, wide, m, n, k);
    }
  }
}

TEST_F(CudaLinear, OfFewRowsByOurKernels) {
  use_state(LinearKernels::kOwn);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {1, 2, 7, 8, 9, 16, 17, 31, 33, 63, 64}) {
      // One row is skinny_linear.cu's.
      auto check = [&](bool wide, int64_t n, int64_t k) {
        return m == 1 ? check_linear(dtype, wide, m, n, k) : check_streamed(dtype, wide, m, n, k);
      };
      for (bool wide : {false, true}) {
        check(wide, 136, 8);
        check(wide, 130, 8);
        check(wide, 1000, 40);
        check(wide, 62, 1000);
        for (int64_t k = 1024; k <= 8192; k += 1024) check(wide, 576, k);  // 1 to 8 parts
        if (m > 1) check_apart(dtype, wide, m, 200, 2056);
        if (m > 1) check_odd(dtype, wide, m, 129, 2056);
      }
    }
    check_streamed(dtype, false, 5, 14336, 1024);
    check_streamed(dtype, true, 33, 9000, 576);
  }
}

// Of more than 32 rows in 16 bits columns are stored by eights; and there are shapes that TMA does not take.
TEST_F(CudaLinear, OtherShapesOfFewRowsAreLeftToTheLibrary) {
  use_state(LinearKernels::kOwn);
  for (auto [m, n, k] :
       {std::array<int64_t, 3>{33, 130, 8}, {64, 62, 1000}, {128, 2, 1032}, {257, 136, 72}, {17, 136, 20}}) {
    check_linear(DType::kBF16, false, m, n, k);
    EXPECT_FALSE(module_->take_last_division(*gpu_state_)) << m << " rows by [" << n << ", " << k << "]";
  }
}

// More strips than there are processors, of which each block has two, one behind the other: 144, on GPUs with
// 72 to 143 processors.
TEST_F(CudaLinear, OfMoreRowsBySeveralWholeStripsABlock) {
  using enum StreamedDivision::Form;
  use_state(LinearKernels::kOwn);
  check_linear(DType::kBF16, false, 65, 18432, 200);
  expect_divided(*gpu_state_, StreamedDivision{.form = kWhole, .wide = true});
  check_linear(DType::kF16, true, 128, 18432, 200);
  expect_divided(*gpu_state_, StreamedDivision{.form = kWhole, .wide = true});
  use_state(LinearKernels::kWholePairs);
  for (int64_t m : {128, 160, 250}) {
    check_linear(DType::kF16, false, m, 18432, 200);
    expect_divided(*gpu_state_, StreamedDivision{.form = kWhole, .wide = true, .sharing = 2});
  }
  use_state(LinearKernels::kThreeParts);  // there are none of so many rows: the first guess
  check_linear(DType::kBF16, false, 250, 18432, 200);
  expect_divided(*gpu_state_, StreamedDivision{.form = kWhole, .wide = true});
}

// Of strips of 64 rows of W and their steps of 128 columns, or of wide strips, 128 rows and 64 columns: less
// than there are blocks, one strip or a few that many blocks share, several to a block, a last strip, or half
// of it, and a last step that are not whole or not there.
class CudaLinearEven : public CudaLinear, public testing::WithParamInterface<LinearKernels> {
 protected:
  void SetUp() override {
    CudaLinear::SetUp();
    if (!IsSkipped()) use_state(GetParam());
  }
  // From less than a strip to several, with columns for one block and for many.
  void check_wide_strips(DType dtype, bool wide, int64_t m) {
    for (int64_t n : {8, 72, 136}) check_streamed(dtype, wide, m, n, 1032);
    check_streamed(dtype, wide, m, 1000, 40);
    check_streamed(dtype, !wide, m, 62, 1000);
    check_streamed(dtype, wide, m, 2, 16376);
    check_streamed(dtype, !wide, m, 520, 8200);
    check_odd(dtype, true, m, 385, 72);
    check_streamed(dtype, wide, m, 1536, 4096);
  }
};

INSTANTIATE_TEST_SUITE_P(Of, CudaLinearEven, testing::Values(LinearKernels::kEven, LinearKernels::kEvenWide));

TEST_P(CudaLinearEven, FewRows) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {1, 7, 17, 32, 33, 64}) {
      for (bool wide : {false, true}) {
        check_streamed(dtype, wide, m, 136, 16384);
        check_streamed(dtype, wide, m, 130, 8);
        check_streamed(dtype, wide, m, 1000, 40);
        check_streamed(dtype, wide, m, 62, 1000);
        check_streamed(dtype, wide, m, 64, 16384);
        check_streamed(dtype, wide, m, 2, 16376);
        check_streamed(dtype, wide, m, 190, 8200);
        check_odd(dtype, wide, m, 1, 16376);
        check_odd(dtype, wide, m, 129, 72);
        check_odd(dtype, wide, m, 575, 1000);
        check_apart(dtype, wide, m, 72, 1032);
        check_apart(dtype, wide, m, 200, 328);
      }
      check_streamed(dtype, m % 2 == 0, m, 384, 8192);
      check_streamed(dtype, m % 2 == 0, m, 1536, 4096);
    }
    for (int64_t m : {2, 8, 9, 16, 31, 63}) check_streamed(dtype, m % 2 == 0, m, 576, 2048);
    check_streamed(dtype, false, 5, 14336, 1024);
    for (int64_t m : {17, 32, 33, 64}) check_streamed(dtype, m % 2 == 1, m, 9000, 576);
    for (int64_t m : {3, 64}) check_streamed(dtype, false, m, 30002, 136);
  }
}

// Alone, in pairs and in fours, of which the last strips may not be there; in ranges, and in parts: two,
// three and, with our first guess, from one to eight, of as many steps or a step more; narrow strips whole
// and in parts.
using CudaLinearOfMoreRows = CudaLinearEven;

INSTANTIATE_TEST_SUITE_P(Of,
                         CudaLinearOfMoreRows,
                         testing::Values(LinearKernels::kOwn,
                                         LinearKernels::kEvenWide,
                                         LinearKernels::kEvenPairs,
                                         LinearKernels::kEvenQuads,
                                         LinearKernels::kWholePairs,
                                         LinearKernels::kWholeQuads,
                                         LinearKernels::kThreeParts,
                                         LinearKernels::kPairsOfParts,
                                         LinearKernels::kNarrowStrips,
                                         LinearKernels::kTwoNarrowParts,
                                         LinearKernels::kThreeNarrowParts,
                                         LinearKernels::kFourNarrowParts));

TEST_P(CudaLinearOfMoreRows, AsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {65, 100, 128}) {
      const bool wide = m == 100;
      check_wide_strips(dtype, wide, m);
      check_streamed(dtype, wide, m, 130, 8);
      check_odd(dtype, true, m, 1, 16376);
      check_odd(dtype, true, m, 129, 1032);
      for (int64_t k : {256, 512, 832, 1032, 1280, 1544, 1792, 2048}) check_streamed(dtype, wide, m, 576, k);
    }
    for (int64_t m : {65, 96, 100, 128}) {
      for (bool wide : {false, true}) {
        check_apart(dtype, wide, m, 72, 328);
        check_apart(dtype, wide, m, 200, 1032);
      }
    }
    // Up to 96 rows and beyond, which take stages of their own.
    for (int64_t m : {72, 88, 96, 97}) {
      const bool wide = m == 88;
      check_streamed(dtype, !wide, m, 72, 1032);
      check_streamed(dtype, !wide, m, 520, 2056);
      for (int64_t k : {256, 512, 832, 1032, 1280, 1544, 1792, 2048}) check_streamed(dtype, wide, m, 200, k);
    }
    check_streamed(dtype, false, 128, 5120, 320);
    check_streamed(dtype, false, 96, 30000, 136);
    check_streamed(dtype, true, 88, 17000, 576);
    check_streamed(dtype, true, 128, 17000, 576);
  }
}

// Up to 192 rows and beyond: strips whole and in ranges, which several blocks share or which are several to a
// block, alone, in pairs and in fours. What other kernels are wanted for has none of them.
using CudaLinearOfMostRows = CudaLinearEven;

INSTANTIATE_TEST_SUITE_P(Of,
                         CudaLinearOfMostRows,
                         testing::Values(LinearKernels::kEvenWide,
                                         LinearKernels::kEvenPairs,
                                         LinearKernels::kEvenQuads,
                                         LinearKernels::kWholePairs,
                                         LinearKernels::kWholeQuads,
                                         LinearKernels::kThreeParts));

TEST_P(CudaLinearOfMostRows, AsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {129, 192, 193, 256}) {
      check_wide_strips(dtype, m == 192, m);
      for (bool floats : {false, true}) check_apart(dtype, floats, m, 200, 1032);
    }
    check_streamed(dtype, false, 200, 30000, 136);
    check_streamed(dtype, true, 160, 17000, 576);
    check_streamed(dtype, false, 256, 8192, 200);
  }
}

// More parts, whose blocks are the third and fourth pairs of their clusters; two strips, of which the second
// may not be there, and as many steps as there are parts.
using CudaLinearPairsOfMoreParts = CudaLinearEven;

INSTANTIATE_TEST_SUITE_P(Of,
                         CudaLinearPairsOfMoreParts,
                         testing::Values(LinearKernels::kPairsOfThreeParts,
                                         LinearKernels::kPairsOfFourParts));

TEST_P(CudaLinearPairsOfMoreParts, AsOnTheCpu) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t m : {65, 96, 97, 128}) {
      for (bool wide : {false, true}) {
        check_streamed(dtype, wide, m, 8, 1032);
        check_streamed(dtype, wide, m, 520, 200);
        check_apart(dtype, wide, m, 200, 1032);
      }
      check_odd(dtype, true, m, 385, 328);
      check_streamed(dtype, m % 2 == 0, m, 576, 2056);
    }
  }
}

// A product starts to read its weights while the one in front of it runs; it must not read x then, nor use
// the memory in which blocks pass on sums.
class CudaLinearChains : public CudaLinear, public testing::WithParamInterface<LinearKernels> {};

INSTANTIATE_TEST_SUITE_P(Of, CudaLinearChains, testing::ValuesIn(kOwnKernels));

TEST_P(CudaLinearChains, ThatOverlapWaitForTheirInput) {
  use_state(GetParam());
  constexpr int64_t kWide = 4096;
  constexpr int64_t kNarrow = 512;
  auto gpu = [](const Twin& twin) { return twin.gpu; };
  auto check = [&](int64_t m, const Weight& up, const Weight& down) {
    Twin start = random_twin(DType::kBF16, {m, kNarrow});
    Twin narrow = output_twin(DType::kBF16, {m, kNarrow});
    Twin wide = output_twin(DType::kBF16, {m, kWide});
    auto multiply = [&](const Twin& x, const Weight& weight, const Twin& y) {
      module_->ops->linear(*gpu_state_, *gpu_stream_, {.x = x.gpu, .weight = weight, .out = y.gpu});
    };
    auto chain = [&](bool one_by_one) {
      gpu_stream_->copy(narrow.gpu, start.gpu);
      for (int i = 0; i < 50; ++i) {
        multiply(narrow, up, wide);
        if (one_by_one) synchronize();
        multiply(wide, down, narrow);
        if (one_by_one) synchronize();
      }
    };
    chain(true);
    const std::vector<std::byte> expected = download(narrow);
    if (m > 1 || GetParam() != LinearKernels::kOwn) expect_streamed(m, kNarrow, kWide);
    for (int again = 0; again < 5; ++again) {
      chain(false);
      EXPECT_EQ(download(narrow), expected) << m << " rows";
    }
    module_->allow_early_starts(false);
    chain(false);
    EXPECT_EQ(download(narrow), expected) << m << " rows, none early";
    module_->allow_early_starts(true);
    gpu_backend_->begin_capture(*gpu_stream_);
    chain(false);
    auto graph = gpu_backend_->end_capture(*gpu_stream_);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    for (int again = 0; again < 5; ++again) {
      upload(narrow);
      for (int replay = 0; replay < 3; ++replay) (*graph)->launch(*gpu_stream_);
      EXPECT_EQ(download(narrow), expected) << m << " rows, replayed";
    }
  };
  for (int64_t m : {1, 4, 17, 40, 96, 100, 192, 250}) {
    const Twin up = random_twin(DType::kBF16, {kWide, kNarrow}, 1 / std::sqrt(double{kNarrow}));
    const Twin down = random_twin(DType::kBF16, {kNarrow, kWide}, 1 / std::sqrt(double{kWide}));
    check(m, dense_weight(up, gpu), dense_weight(down, gpu));
  }
  for (int64_t m : {2, 9, 17, 32}) {
    const F8Weight up = f8_weight(kWide, kNarrow);
    const F8Weight down = f8_weight(kNarrow, kWide);
    check(m, up.weight(gpu), down.weight(gpu));
  }
}

// Of the test's own launches: a module's switch is its own.
TEST_F(CudaLinear, LaunchesAreEarlyWhereThatIsAllowed) {
  const OverlappedLaunch launch{.grid = dim3(1), .threads = 32};
  EXPECT_EQ(LaunchConfig(launch).get()->numAttrs, compute_capability_major() >= 9 ? 1u : 0u);
  early_starts_allowed = false;
  EXPECT_EQ(LaunchConfig(launch).get()->numAttrs, 0u);
  early_starts_allowed = true;
}

TEST_F(CudaLinear, ByKernelsThatWereTriedOut) {
  const std::string cache = testing::TempDir() + "llm-dist-cache-" + std::to_string(getpid());
  setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  auto run_tuned = [&] {
    gpu_state_ = module_->ops->make_state(*gpu_backend_, options_).value();
    gpu_state_->start_tuning();
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      for (int64_t m : {3, 32, 60, 100, 200, 300}) check_linear(dtype, false, m, 1536, 576);
      check_linear(dtype, true, 17, 1000, 576);
    }
    gpu_state_->end_tuning();
    check_linear(DType::kBF16, false, 33, 1536, 576);  // a shape that nobody tried
  };
  run_tuned();
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(cache + "/llm-dist")) files.push_back(entry);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(lines_of(files[0]), 14 + 3);
  // What stands there is not tried again: the file stays as it is, though it could be written.
  const auto written = std::filesystem::last_write_time(files[0]);
  run_tuned();
  EXPECT_EQ(std::filesystem::last_write_time(files[0]), written);
  // What another library wrote is no reason to fail.
  std::filesystem::resize_file(files[0], 100);
  run_tuned();
  EXPECT_EQ(lines_of(files[0]), 14 + 3);
  std::filesystem::remove_all(cache);
  // Nor is anything tried or kept where that is not wanted.
  OpStateOptions untuned = options_;
  untuned.autotune = false;
  gpu_state_ = module_->ops->make_state(*gpu_backend_, untuned).value();
  gpu_state_->start_tuning();
  check_linear(DType::kBF16, false, 60, 1536, 576);
  gpu_state_->end_tuning();
  EXPECT_FALSE(std::filesystem::exists(cache));
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace llm_dist::kernels
