#include "comm/p2p/message_gates.h"

#include <algorithm>
#include <limits>

#include "comm/p2p/peer_layout.h"

namespace llm_dist::comm {
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
  return stream_wait_.make(begun(view.rank == 0 ? 1 : 0), opener_);
}

const uint64_t* MessageGates::begun(int peer) const {
  const std::byte* words = view_->memory[view_->rank] + view_->layout.messages_begun;
  return reinterpret_cast<const uint64_t*>(words) + message_row(view_->rank, peer);
}

uint64_t MessageGates::number_to(int peer, cudaStream_t stream) {
  return is_captured(stream) ? 0 : ++sent_[static_cast<size_t>(peer)];
}

cudaError_t MessageGates::wait_for(int peer, cudaStream_t stream) {
  if (is_captured(stream)) return cudaSuccess;
  const uint64_t number = ++received_[static_cast<size_t>(peer)];
  return work() ? stream_wait_.wait(stream, begun(peer), number) : cudaSuccess;
}

// Senders only ever raise the words: what is written here stays.
void MessageGates::open_all() {
  if (opener_ == nullptr || opened_.exchange(true)) return;
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
