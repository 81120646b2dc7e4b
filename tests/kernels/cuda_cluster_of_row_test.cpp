// A row's norm by a cluster of blocks, beside the same by a block: the bits are equal.
#include "tests/kernels/cuda_fixture.h"
#include "tests/kernels/norms_of_clusters.h"

namespace llm_dist::kernels {
namespace {

class CudaClusterOfRow : public CudaOpTest {};

// Many rows a cluster, one behind the other, with warps and blocks apart: what is sent for one row must not
// be taken for another's.
TEST_F(CudaClusterOfRow, HasTheBitsOfABlock) {
  if (!is_hopper()) GTEST_SKIP() << "clusters are compiled for Hopper alone";
  constexpr int kRows = 40;
  auto* stream = static_cast<cudaStream_t>(gpu_stream_->native());
  for (int width : {8192, 8000, 5120, 4680, 1024}) {
    const Twin x = random_twin(DType::kBF16, {kRows, width});
    const Twin weight = random_twin(DType::kBF16, {width});
    const Twin of_block = output_twin(DType::kBF16, {kRows, width});
    NormsOfClusters norms{
        .x = x.gpu.data, .weight = weight.gpu.data, .out = of_block.gpu.data, .rows = kRows, .width = width};
    ASSERT_EQ(norms_of_clusters(norms, stream), cudaSuccess);
    const std::vector<std::byte> expected = download(of_block);
    for (int blocks : {1, 2, 4, 8}) {
      for (int clusters : {1, 3}) {
        for (int delay : {0, 40, 400}) {
          SCOPED_TRACE(
              format("rows of {}, {} clusters of {} blocks, delay {}", width, clusters, blocks, delay));
          const Twin of_clusters = output_twin(DType::kBF16, {kRows, width});
          norms.out = of_clusters.gpu.data;
          norms.blocks = blocks;
          norms.clusters = clusters;
          norms.delay = delay;
          ASSERT_EQ(norms_of_clusters(norms, stream), cudaSuccess);
          ASSERT_EQ(download(of_clusters), expected);
        }
      }
    }
  }
}

}  // namespace
}  // namespace llm_dist::kernels
