#include "comm/nccl/cuda_host_gate.h"

#include <atomic>
#include <thread>
#include <utility>

#include "src/device/cuda/cuda_error.h"

namespace llm_dist::comm {
namespace {

Status cuda_status(cudaError_t error, std::string_view what) {
  if (error != cudaSuccess) (void)cudaGetLastError();  // else the next launch would find it
  return device::cuda_status(error, what);
}

void check(device::Stream& stream, cudaError_t error, std::string_view what) {
  Status status = cuda_status(error, what);
  if (!status.ok()) stream.fail(std::move(status));
}

}  // namespace

Result<std::unique_ptr<HostGate>> CudaHostGate::make(int device_index) {
  std::unique_ptr<CudaHostGate> gate(new CudaHostGate(device_index));
  RETURN_IF_ERROR(cuda_status(cudaSetDevice(device_index), "cudaSetDevice"));
  void* word = nullptr;
  RETURN_IF_ERROR(cuda_status(
      cudaHostAlloc(&word, sizeof *opened_, cudaHostAllocPortable | cudaHostAllocMapped), "a pinned word"));
  gate->opened_ = static_cast<uint64_t*>(word);
  *gate->opened_ = 0;
  RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&gate->caller_, cudaStreamNonBlocking), "a stream"));
  RETURN_IF_ERROR(cuda_status(cudaEventCreateWithFlags(&gate->here_, cudaEventDisableTiming), "an event"));
  RETURN_IF_ERROR(cuda_status(gate->stream_wait_.make(gate->opened_, gate->caller_), "a stream's wait"));
  if (!gate->stream_wait_.works()) return failed_precondition("streams cannot wait for a word of memory");
  return std::unique_ptr<HostGate>(std::move(gate));
}

// A stream may still look at the word of a group that was aborted.
CudaHostGate::~CudaHostGate() {
  if (caller_ != nullptr) (void)cudaStreamDestroy(caller_);  // when its calls are made
  if (here_ != nullptr) (void)cudaEventDestroy(here_);
  if (opened_ != nullptr && std::atomic_ref(*opened_).load() != kBeyondAll) (void)cudaFreeHost(opened_);
}

bool CudaHostGate::takes(device::Stream& stream) const {
  return !is_captured(static_cast<cudaStream_t>(stream.native()));
}

void CudaHostGate::tell_host(device::Stream& stream, std::function<void()> call) {
  if (!stream.error().ok()) return;
  auto boxed = std::make_unique<std::function<void()>>(std::move(call));
  auto run = [](void* box) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(box));
    (*owned)();
  };
  (void)cudaSetDevice(device_index_);
  cudaError_t error = cudaEventRecord(here_, static_cast<cudaStream_t>(stream.native()));
  if (error == cudaSuccess) error = cudaStreamWaitEvent(caller_, here_);
  if (error == cudaSuccess) error = cudaLaunchHostFunc(caller_, run, boxed.get());
  if (error == cudaSuccess) (void)boxed.release();
  check(stream, error, "cudaLaunchHostFunc");
}

void CudaHostGate::finish(Deadline deadline) {
  while (cudaStreamQuery(caller_) == cudaErrorNotReady && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  (void)cudaGetLastError();
}

void CudaHostGate::wait(device::Stream& stream, uint64_t number) {
  if (!stream.error().ok()) return;
  (void)cudaSetDevice(device_index_);
  const cudaError_t error = stream_wait_.wait(static_cast<cudaStream_t>(stream.native()), opened_, number);
  check(stream, error, "a stream's wait");
}

void CudaHostGate::open(uint64_t number) {
  std::atomic_ref word(*opened_);
  uint64_t opened = word.load();
  while (opened < number && !word.compare_exchange_weak(opened, number)) {
  }
}

}  // namespace llm_dist::comm
