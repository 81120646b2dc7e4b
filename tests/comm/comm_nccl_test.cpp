// The conformance suite over NCCL: a world of threads, one for each visible GPU. Exits with 77 where there
// are fewer than two.
#include <gtest/gtest.h>

#include "comm/nccl_groups.h"
#include "tests/comm/gpu_ranks.h"

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

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) { return llm_dist::comm::run_gpu_tests(argc, argv); }
