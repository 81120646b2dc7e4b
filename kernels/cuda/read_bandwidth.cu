#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/read_bandwidth.h"

namespace llm_dist::kernels {
namespace {

constexpr int64_t kBytes = int64_t{2} << 30;
constexpr int kThreads = 512;
constexpr int kBlocks = 132 * 16;
constexpr int kAhead = 4;  // loads of a thread in flight
constexpr int kPasses = 6;
constexpr double kDeadlineSeconds = 60;

__global__ void __launch_bounds__(kThreads) read_all(const uint4* from, int64_t count, uint32_t* sink) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  uint32_t seen = 0;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kAhead - 1) * step < count; i += kAhead * step) {
    uint4 values[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) values[a] = __ldcs(from + i + a * step);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) seen |= values[a].x | values[a].y | values[a].z | values[a].w;
  }
  // Never true of a zeroed buffer, and the compiler cannot know.
  if (seen == 1) *sink = seen;
}

}  // namespace

Result<double> read_bandwidth_cuda(device::Backend& backend) {
  ASSIGN_OR_RETURN(device::Buffer buffer, backend.allocate(kBytes, device::MemoryKind::kDevice));
  ASSIGN_OR_RETURN(device::Buffer times, backend.allocate(64, device::MemoryKind::kPinned));
  std::unique_ptr<device::Stream> stream = backend.make_stream("read-bandwidth");
  device::CudaStream& cuda = device::as_cuda(*stream);
  auto* stamps = reinterpret_cast<int64_t*>(times.data());
  const int64_t count = kBytes / static_cast<int64_t>(sizeof(uint4));
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    cuda.write_timestamp(stamps);
    read_all<<<kBlocks, kThreads, 0, cuda.handle()>>>(
        reinterpret_cast<const uint4*>(buffer.data()), count, reinterpret_cast<uint32_t*>(buffer.data()));
    cuda.check(cudaGetLastError(), "read_bandwidth");
    cuda.write_timestamp(stamps + 1);
    RETURN_IF_ERROR(cuda.synchronize(Deadline::after_seconds(kDeadlineSeconds)));
    const auto seconds = static_cast<double>(stamps[1] - stamps[0]) * 1e-9;
    if (seconds > 0) best = std::max(best, static_cast<double>(kBytes) / seconds);
  }
  return best;
}

}  // namespace llm_dist::kernels
