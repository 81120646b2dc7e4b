#include "comm/p2p/message_gates.h"

#include <cuda.h>

#include <algorithm>
#include <limits>

#include "comm/p2p/peer_layout.h"

namespace llm_dist::comm {
namespace {

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

// Null where the driver has none.
void* find_wait_value() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kFirstVersion = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuStreamWaitValue64", &found, kFirstVersion, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuStreamWaitValue64", &found, cudaEnableDefault, &result);
#endif
  if (error == cudaSuccess) return found;
  (void)cudaGetLastError();
  return nullptr;
}

// `stream` goes on when `word` is `least` or more.
CUresult wait_for_value(void* wait_value, cudaStream_t stream, const std::byte* word, uint64_t least) {
  return reinterpret_cast<decltype(&cuStreamWaitValue64)>(wait_value)(
      stream, reinterpret_cast<CUdeviceptr>(word), least, CU_STREAM_WAIT_VALUE_GEQ);
}

}  // namespace

void MessageGates::close() {
  if (opener_ != nullptr) (void)cudaStreamDestroy(opener_);
  (void)cudaFreeHost(beyond_numbers_);
}

cudaError_t MessageGates::make(const PeerView& view) {
  view_ = &view;
  cudaError_t error = cudaGetDevice(&device_);
  if (error != cudaSuccess) return error;
  const auto peers = static_cast<size_t>(view.size - 1);
  void* pinned = nullptr;
  error = cudaHostAlloc(&pinned, peers * sizeof(uint64_t), cudaHostAllocPortable);
  if (error != cudaSuccess) return error;
  beyond_numbers_ = static_cast<uint64_t*>(pinned);
  // A stream compares by the sign of the difference.
  std::fill_n(beyond_numbers_, peers, uint64_t{std::numeric_limits<int64_t>::max()});
  error = cudaStreamCreateWithFlags(&opener_, cudaStreamNonBlocking);
  if (error != cudaSuccess) return error;
  wait_value_ = find_wait_value();
  if (wait_value_ == nullptr) return cudaSuccess;
  const CUresult tried = wait_for_value(wait_value_, opener_, begun(view.rank == 0 ? 1 : 0), 0);
  if (tried == CUDA_ERROR_NOT_SUPPORTED) wait_value_ = nullptr;
  return tried == CUDA_ERROR_NOT_SUPPORTED ? cudaSuccess
                                           : static_cast<cudaError_t>(tried);  // the same numbers
}

const std::byte* MessageGates::begun(int peer) const {
  const std::byte* words = view_->memory[view_->rank] + view_->layout.messages_begun;
  return words + static_cast<size_t>(message_row(view_->rank, peer)) * sizeof(uint64_t);
}

uint64_t MessageGates::number_to(int peer, cudaStream_t stream) {
  return is_captured(stream) ? 0 : ++sent_[static_cast<size_t>(peer)];
}

cudaError_t MessageGates::wait_for(int peer, cudaStream_t stream) {
  if (is_captured(stream)) return cudaSuccess;
  const uint64_t number = ++received_[static_cast<size_t>(peer)];
  if (!work()) return cudaSuccess;
  return static_cast<cudaError_t>(wait_for_value(wait_value_, stream, begun(peer), number));
}

// Senders only ever raise the words: what is written here stays.
void MessageGates::open_all() {
  if (opener_ == nullptr) return;
  int others = 0;  // the device that the calling thread works with
  (void)cudaGetDevice(&others);
  (void)cudaSetDevice(device_);
  (void)cudaMemcpyAsync(view_->memory[view_->rank] + view_->layout.messages_begun,
                        beyond_numbers_,
                        static_cast<size_t>(view_->size - 1) * sizeof(uint64_t),
                        cudaMemcpyHostToDevice,
                        opener_);
  (void)cudaSetDevice(others);
}

}  // namespace llm_dist::comm
