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

class NcclConformance : public testing::TestWithParam<std::tuple<int, ConformanceCase>> {};

TEST_P(NcclConformance, Case) {
  auto [size, tried] = GetParam();
  const kernels::CudaModule* module = cuda_module().value();
  if (size > module->visible_devices()) GTEST_SKIP() << "fewer than " << size << " GPUs";
  run_on_gpus(*module, size, kNcclTraits, make_nccl_communicator, tried.run);
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         NcclConformance,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::ValuesIn(conformance_cases(kNcclTraits))),
                         [](const auto& instance) {
                           return case_name(std::get<1>(instance.param)) + "With" +
                                  std::to_string(std::get<0>(instance.param));
                         });

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) { return llm_dist::comm::run_gpu_tests(argc, argv); }
