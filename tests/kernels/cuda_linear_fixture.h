// What the tests of linear layers on a GPU share: weights that stand on both sides, rows as a GPU rounds
// them, and which kernel has multiplied.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/kernels/cuda_fixture.h"

namespace llm_dist::kernels {

// All that have products of few rows by kernels of ours alone.
inline const std::vector<LinearKernels> kOwnKernels = {LinearKernels::kOwn,
                                                       LinearKernels::kEven,
                                                       LinearKernels::kEvenWide,
                                                       LinearKernels::kEvenPairs,
                                                       LinearKernels::kEvenQuads,
                                                       LinearKernels::kWholePairs,
                                                       LinearKernels::kWholeQuads,
                                                       LinearKernels::kThreeParts,
                                                       LinearKernels::kPairsOfParts,
                                                       LinearKernels::kPairsOfThreeParts,
                                                       LinearKernels::kPairsOfFourParts,
                                                       LinearKernels::kNarrowStrips,
                                                       LinearKernels::kTwoNarrowParts,
                                                       LinearKernels::kThreeNarrowParts,
                                                       LinearKernels::kFourNarrowParts};

class CudaLinearTest : public CudaOpTest {
 protected:
  // The dense weight that `w` [n, k] is.
  template <typename Pick>
  static Weight dense_weight(const Twin& w, Pick&& pick) {
    const int64_t n = w.cpu.dim(0);
    const int64_t k = w.cpu.dim(1);
    Weight weight{.scheme = scheme_of(w.cpu.dtype), .n = n, .k = k};
    weight.parts[0] =
        Tensor::contiguous(pick(w).data, DType::kU8, {n, k * dtype_bytes(w.cpu.dtype)}, pick(w).device);
    return weight;
  }
  // A weight on both sides, every code as likely as another.
  struct F8Weight {
    Twin codes;
    Twin scales;
    int64_t n;
    int64_t k;
    template <typename Pick>
    Weight weight(Pick&& pick) const {
      Weight made{.scheme = WeightScheme::kF8E4M3, .n = n, .k = k};
      made.parts[0] = Tensor::contiguous(pick(codes).data, DType::kU8, {n, k}, pick(codes).device);
      made.parts[1] = pick(scales);
      return made;
    }
  };
  F8Weight f8_weight(int64_t n, int64_t k) {
    constexpr double kSize = 100;  // of codes, in the root mean square
    std::uniform_real_distribution<double> scale(0.5, 2);
    std::vector<double> scales(static_cast<size_t>(n));
    for (double& value : scales) value = scale(random_) / kSize / std::sqrt(static_cast<double>(k));
    // i32 is what a twin can be filled with: four codes each.
    F8Weight made{.codes = twin_of(std::make_shared<TestTensor>(
                      DType::kI32, std::initializer_list<int64_t>{(n * k + 3) / 4})),
                  .scales = twin_of(DType::kF32, {n}, scales),
                  .n = n,
                  .k = k};
    auto* codes = static_cast<uint8_t*>(made.codes.cpu.data);
    for (int64_t i = 0; i < n * k; ++i) {
      const auto code = static_cast<uint8_t>(random_() >> 56);
      codes[i] = (code & 0x7f) == 0x7f ? 0 : code;
    }
    upload(made.codes);
    return made;
  }
  // So that no row's scale is right for its neighbours.
  void scale_rows(const Twin& x) {
    const int64_t k = x.cpu.dim(1);
    for (int64_t i = 0; i < x.cpu.numel(); ++i)
      set_element(x.cpu, i, element(x.cpu, i) / static_cast<double>(1 + i / k % 5));
    upload(x);
  }
  // Rows of x as a GPU quantizes them for products of more than 32 rows.
  void round_rows(const Twin& x) {
    const int64_t k = x.cpu.dim(1);
    for (int64_t row = 0; row < x.cpu.dim(0); ++row) {
      double largest = 1e-30;
      for (int64_t i = 0; i < k; ++i) largest = std::max(largest, std::abs(element(x.cpu, row * k + i)));
      const auto factor = 448.0f / static_cast<float>(largest);
      for (int64_t i = 0; i < k; ++i) {
        const auto value = static_cast<float>(element(x.cpu, row * k + i));
        set_element(
            x.cpu, row * k + i, static_cast<double>(to_float(to_f8e4m3(value * factor))) * largest / 448);
      }
    }
  }
  // kSums: Hopper's products of 8-bit floats, which keep but 13 bits of a sum.
  enum class Rounds : uint8_t { kNothing, kSums, kRows };
  // In float, so that what was rounded once is not rounded again.
  Twin as_floats(const Twin& twin) {
    const Tensor& from = twin.cpu;
    auto host = from.rank == 1
                    ? std::make_shared<TestTensor>(DType::kF32, std::initializer_list<int64_t>{from.dim(0)})
                    : std::make_shared<TestTensor>(DType::kF32,
                                                   std::initializer_list<int64_t>{from.dim(0), from.dim(1)});
    for (int64_t i = 0; i < from.numel(); ++i) host->set(i, element(from, i));
    return twin_of(std::move(host));
  }
  // `got` on the GPU beside floats on the CPU.
  void expect_near(const Twin& got, const Twin& expected, double tolerance) {
    const std::vector<std::byte> bytes = download(got);
    Tensor seen = got.cpu;
    seen.data = const_cast<std::byte*>(bytes.data());
    for (int64_t i = 0; i < seen.numel(); ++i) {
      const double want = element(expected.cpu, i);
      ASSERT_NEAR(want, element(seen, i), tolerance * (1 + std::abs(want))) << "element " << i;
    }
  }
  void use_state(LinearKernels linear, bool persistent_kernels = true) {
    kernels_ = linear;
    OpStateOptions options = options_;
    options.linear = linear;
    options.f8_weights = true;
    options.persistent_kernels = persistent_kernels;
    gpu_state_ = module_->ops->make_state(*gpu_backend_, options).value();
  }

  // How `kernels` has a product of m rows of x and W [n, k] divided, which the kernels for few rows take, by
  // what op_state.h and streamed_division.h say; nothing where that is the first guess.
  static std::optional<StreamedDivision> wanted_division(
      LinearKernels kernels, int64_t m, int64_t n, int64_t k, bool f8) {
    using enum StreamedDivision::Form;
    constexpr int64_t kStripRows = 128;       // of W, of a wide strip
    constexpr int64_t kLeastProcessors = 64;  // in clusters, on the smallest GPU that these kernels run on
    const int64_t step = f8 ? 128 : 64;       // columns of a wide strip
    const bool many = m > 64;
    const bool cuts = many && m <= 128;  // a strip's columns in parts
    auto in_pairs = [&](int parts) -> std::optional<StreamedDivision> {
      if (!cuts || k <= (parts - 1) * step) return std::nullopt;
      return StreamedDivision{.wide = true, .sharing = 2, .parts = parts};
    };
    auto narrow = [&](int parts) -> std::optional<StreamedDivision> {
      if (!cuts || k <= (parts - 1) * 2 * step) return std::nullopt;
      return StreamedDivision{.parts = parts};
    };
    auto sharing = [&](StreamedDivision::Form form, int blocks) -> std::optional<StreamedDivision> {
      if (!many || (form == kWhole && n > kLeastProcessors * kStripRows)) return std::nullopt;
      return StreamedDivision{.form = form, .wide = true, .sharing = blocks};
    };
    switch (kernels) {
      case LinearKernels::kEven:
        if (many) return std::nullopt;
        return StreamedDivision{.form = kEven};
      case LinearKernels::kEvenWide: return StreamedDivision{.form = kEven, .wide = true};
      case LinearKernels::kEvenPairs: return sharing(kEven, 2);
      case LinearKernels::kEvenQuads: return sharing(kEven, 4);
      case LinearKernels::kWholePairs: return sharing(kWhole, 2);
      case LinearKernels::kWholeQuads: return sharing(kWhole, 4);
      case LinearKernels::kThreeParts:
        if (!cuts || k <= 2 * step) return std::nullopt;
        return StreamedDivision{.wide = true, .parts = 3};
      case LinearKernels::kPairsOfParts: return in_pairs(2);
      case LinearKernels::kPairsOfThreeParts: return in_pairs(3);
      case LinearKernels::kPairsOfFourParts: return in_pairs(4);
      case LinearKernels::kNarrowStrips: return narrow(1);
      case LinearKernels::kTwoNarrowParts: return narrow(2);
      case LinearKernels::kThreeNarrowParts: return narrow(3);
      case LinearKernels::kFourNarrowParts: return narrow(4);
      default: return std::nullopt;
    }
  }
  // The last product of `state` was by the kernels for few rows, and divided so where something is wanted.
  void expect_divided(OpState& state, const std::optional<StreamedDivision>& wanted) {
    const std::optional<StreamedDivision> seen = module_->take_last_division(state);
    if (!is_hopper()) return;
    ASSERT_TRUE(seen) << "another kernel ran";
    auto text = [](const StreamedDivision& division) {
      return format("form {}, wide {}, {} that share, {} parts",
                    static_cast<int>(division.form),
                    division.wide,
                    division.sharing,
                    division.parts);
    };
    if (wanted) {
      EXPECT_TRUE(*seen == *wanted) << text(*seen) << " in the place of " << text(*wanted);
    }
  }
  // Likewise, of this test's state.
  void expect_streamed(int64_t m, int64_t n, int64_t k, bool f8 = false) {
    expect_divided(*gpu_state_, wanted_division(kernels_, m, n, k, f8));
  }

  LinearKernels kernels_ = LinearKernels::kFastest;  // of gpu_state_
};

// By our kernel for prompts, where the device has it.
class CudaPromptTest : public CudaLinearTest {
 protected:
  void SetUp() override {
    CudaLinearTest::SetUp();
    if (IsSkipped()) return;
    if (!is_hopper()) GTEST_SKIP() << "no kernel of ours for prompts";
    use_state(LinearKernels::kOwn);
  }
  static Tensor on_cpu(const Twin& twin) { return twin.cpu; }
  static Tensor on_gpu(const Twin& twin) { return twin.gpu; }
};

}  // namespace llm_dist::kernels
