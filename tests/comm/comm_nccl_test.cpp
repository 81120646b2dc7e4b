// The conformance suite over NCCL: a world of threads, one for each visible GPU. Exits with 77 where there
// are fewer than two.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>

#include "comm/nccl_groups.h"
#include "tests/comm/conformance_group.h"
#include "tests/comm/gpu_ranks.h"

namespace llm_dist::comm {
namespace {

constexpr int kNcclSystemError = 2;
std::atomic<int> allocations = 0;
std::atomic<int> allocation_that_fails = 0;

}  // namespace
}  // namespace llm_dist::comm

// The program exports it, so that the NCCL module finds it in front of the library's.
extern "C" [[gnu::visibility("default")]] int ncclMemAlloc(void** memory, size_t bytes) {
  using MemAlloc = int (*)(void**, size_t);
  static const auto of_library =
      reinterpret_cast<MemAlloc>(dlsym(dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD), "ncclMemAlloc"));
  if (++llm_dist::comm::allocations == llm_dist::comm::allocation_that_fails)
    return llm_dist::comm::kNcclSystemError;
  return of_library(memory, bytes);
}

namespace llm_dist::comm {
namespace {

constexpr SiteTraits kNcclTraits{.sums_in_rank_order = false,
                                 .operations_end_themselves = false,
                                 .streams_may_stall = false,
                                 .abort_seconds = 3};

Result<std::unique_ptr<Communicator>> make_nccl(World& world,
                                                std::span<const int> ranks,
                                                const std::string& name,
                                                int device_index) {
  return make_nccl_communicator(world, ranks, name, device_index);
}

// With announced messages between two.
Result<std::unique_ptr<Communicator>> make_announced(World& world,
                                                     std::span<const int> ranks,
                                                     const std::string& name,
                                                     int device_index) {
  return make_nccl_communicator(world, ranks, name, device_index, {.hands_off = true});
}

class NcclConformance : public testing::TestWithParam<std::tuple<int, ConformanceCase>> {};

TEST_P(NcclConformance, Case) {
  auto [size, tried] = GetParam();
  const kernels::CudaModule* module = cuda_module().value();
  if (size > module->visible_devices()) GTEST_SKIP() << "fewer than " << size << " GPUs";
  run_on_gpus(*module, size, kNcclTraits, make_nccl, tried.run);
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         NcclConformance,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::ValuesIn(conformance_cases(kNcclTraits))),
                         [](const auto& instance) {
                           return case_name(std::get<1>(instance.param)) + "With" +
                                  std::to_string(std::get<0>(instance.param));
                         });

class AnnouncedConformance : public testing::TestWithParam<ConformanceCase> {};

TEST_P(AnnouncedConformance, Case) {
  const kernels::CudaModule* module = cuda_module().value();
  if (module->visible_devices() < 2) GTEST_SKIP() << "fewer than 2 GPUs";
  run_on_gpus(*module, 2, kNcclTraits, make_announced, GetParam().run);
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         AnnouncedConformance,
                         testing::ValuesIn(conformance_cases(kNcclTraits)),
                         [](const auto& instance) { return case_name(instance.param); });

// Memory that all ranks write to is all ranks' or nobody's: one that has none keeps nobody waiting.
TEST(NcclSumMemory, IsNobodysWhereOneRankGetsNone) {
  const kernels::CudaModule* module = cuda_module().value();
  if (module->visible_devices() < 2) GTEST_SKIP() << "fewer than 2 GPUs";
  allocation_that_fails = allocations + 1;
  run_on_gpus(*module, 2, kNcclTraits, make_nccl, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    EXPECT_TRUE(group.comm->sum_memory().empty());
    auto data = SiteTensor<float>::known(site, group.rank(), 1023);
    data.upload(*group.stream);
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
    data.download(*group.stream);
    ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
    auto sum = [](int64_t i) { return known_value<float>(0, i) + known_value<float>(1, i); };
    EXPECT_EQ(first_difference(data, sum), -1);
  });
  EXPECT_GE(allocations.load(), allocation_that_fails.load()) << "the module's calls go elsewhere";
}

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) { return llm_dist::comm::run_gpu_tests(argc, argv); }
