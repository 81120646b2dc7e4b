#include "src/device/cuda/cuda_stream.h"

#include <utility>

#include "src/device/cuda/cuda_error.h"
#include "src/device/cuda/cuda_event.h"
#include "src/device/cuda/cuda_wait.h"
#include "src/device/cuda/timestamp.h"

namespace llm_dist::device {

CudaStream::CudaStream(int device_index, std::string name)
    : device_index_(device_index), name_(std::move(name)) {
  cudaSetDevice(device_index_);
  cudaError_t error = cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking);
  CHECK(error == cudaSuccess, "cudaStreamCreate: {}", cudaGetErrorString(error));
}

CudaStream::~CudaStream() {
  if (put_off_ != nullptr) put_off_->drop();
  // Work under way still uses buffers that go after the stream. A failed stream may hang for ever: the
  // process is about to end then.
  if (!has_failed()) (void)cudaStreamSynchronize(handle_);
  (void)cudaStreamDestroy(handle_);
}

bool CudaStream::enter() {
  PutOffWork* work = std::exchange(put_off_, nullptr);
  if (!has_failed()) check(cudaSetDevice(device_index_), "cudaSetDevice");
  if (work != nullptr && has_failed()) work->drop();
  if (work != nullptr && !has_failed()) work->issue(*this);
  return !has_failed();
}

void CudaStream::put_off(PutOffWork* work) {
  CHECK(put_off_ == nullptr, "work that was put off and not issued");
  put_off_ = work;
}

void* CudaStream::native() {
  (void)enter();
  return handle_;
}

void CudaStream::check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(cuda_status(error, format("{} on stream {}", what, name_)));
}

void CudaStream::record(Event& event) {
  auto& cuda_event = static_cast<CudaEvent&>(event);
  cuda_event.set_stream(this);
  if (enter()) check(cudaEventRecord(cuda_event.handle(), handle_), "cudaEventRecord");
}

// A failed stream skips records, so what waits for them would go on at once, with what was there before.
void CudaStream::wait(Event& event) {
  if (!enter()) return;
  auto& cuda_event = static_cast<CudaEvent&>(event);
  if (Status theirs = cuda_event.error(); !theirs.ok()) return fail(std::move(theirs));
  check(cudaStreamWaitEvent(handle_, cuda_event.handle(), 0), "cudaStreamWaitEvent");
}

void CudaStream::copy(const Tensor& dst, const Tensor& src) {
  CHECK(dst.is_contiguous() && src.is_contiguous(), "{} <- {}", dst.to_string(), src.to_string());
  CHECK_EQ(dst.bytes(), src.bytes());
  if (dst.bytes() == 0 || !enter()) return;
  check(cudaMemcpyAsync(dst.data, src.data, static_cast<size_t>(dst.bytes()), cudaMemcpyDefault, handle_),
        "cudaMemcpyAsync");
}

void CudaStream::fill_zero(const Tensor& dst) {
  CHECK(dst.is_contiguous(), "{}", dst.to_string());
  if (dst.bytes() == 0 || !enter()) return;
  check(cudaMemsetAsync(dst.data, 0, static_cast<size_t>(dst.bytes()), handle_), "cudaMemsetAsync");
}

void CudaStream::write_timestamp(int64_t* pinned_ns) {
  if (enter()) check(launch_timestamp(pinned_ns, handle_), "a timestamp");
}

Status CudaStream::synchronize(Deadline deadline) {
  if (!enter()) return error();
  Status status = poll_until_done([&] { return has_failed() ? cudaSuccess : cudaStreamQuery(handle_); },
                                  deadline,
                                  "the end of stream " + name_);
  if (!status.ok() && status.code() != StatusCode::kDeadlineExceeded) fail(status);
  return has_failed() ? error() : status;
}

Status CudaStream::error() const {
  if (!has_failed()) return {};
  std::lock_guard lock(mutex_);
  return error_;
}

Status CudaStream::poll() {
  const cudaError_t state = has_failed() ? cudaSuccess : cudaStreamQuery(handle_);
  if (state != cudaErrorNotReady) check(state, "work");
  return error();
}

void CudaStream::fail(Status status) {
  std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  error_ = std::move(status);
  failed_.store(true, std::memory_order_release);
}

}  // namespace llm_dist::device
