#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "comm/p2p/system_memory.cuh"
#include "tests/comm/shared_gpu_calls.h"

namespace llm_dist::comm::shared_gpu {
namespace {

constexpr int kThreads = 1024;

__device__ bool reaches(const Place& place, const uint64_t* word, uint64_t least) {
  uint32_t polls = 0;
  while (load_acquire(word) < least) {
    if (++polls % 1024 == 0 && load_relaxed(place.aborted) != 0) return false;
  }
  return true;
}

__device__ bool all_reach(const Place& place, const uint64_t* words, uint64_t least) {
  for (int rank = 0; rank < place.size; ++rank)
    if (!reaches(place, words + rank, least)) return false;
  return true;
}

template <typename T>
__device__ void copy_words(std::byte* to, const std::byte* from, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes / static_cast<int64_t>(sizeof(T)); i += kThreads)
    reinterpret_cast<T*>(to)[i] = reinterpret_cast<const volatile T*>(from)[i];
}

__device__ void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (to == from) return;
  const uint64_t low_bits =
      reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | static_cast<uint64_t>(bytes);
  if (low_bits % sizeof(uint32_t) == 0) {
    copy_words<uint32_t>(to, from, bytes);
  } else {
    copy_words<uint8_t>(to, from, bytes);
  }
}

template <typename T>
__device__ T combined(T a, T b, ReduceOp op) {
  if (op == ReduceOp::kSum) return a + b;
  return (op == ReduceOp::kMax) == (a < b) ? b : a;
}

// Of element `i` of every rank's in, in rank order; 16-bit floats in float.
template <typename T>
__device__ T reduced(const Place& place, int64_t i, ReduceOp op) {
  using Wide = std::conditional_t<std::is_integral_v<T>, T, float>;
  Wide all{};
  for (int rank = 0; rank < place.size; ++rank) {
    const auto value = static_cast<Wide>(reinterpret_cast<const T*>(place.board->in[rank])[i]);
    all = rank == 0 ? value : combined(all, value, op);
  }
  return static_cast<T>(all);
}

// All-reduces are in place: each rank makes a part of the result and hands it to all.
template <typename T>
__device__ void reduce_elements(const Place& place, const Call& call) {
  const bool scatters = call.kind == Kind::kReduceScatter;
  const int64_t part = scatters ? call.count : (call.count + place.size - 1) / place.size;
  const int64_t begin = place.rank * part;
  for (int64_t i = threadIdx.x; i < part; i += kThreads) {
    if (!scatters && begin + i >= call.count) return;
    const T value = reduced<T>(place, begin + i, call.op);
    if (scatters) reinterpret_cast<T*>(place.board->out[place.rank])[i] = value;
    for (int rank = 0; !scatters && rank < place.size; ++rank)
      reinterpret_cast<T*>(place.board->out[rank])[begin + i] = value;
  }
}

__device__ void reduce_elements(const Place& place, const Call& call) {
  switch (call.dtype) {
    case DType::kF32: return reduce_elements<float>(place, call);
    case DType::kF16: return reduce_elements<__half>(place, call);
    case DType::kBF16: return reduce_elements<__nv_bfloat16>(place, call);
    case DType::kI32: return reduce_elements<int32_t>(place, call);
    default: return reduce_elements<long long>(place, call);
  }
}

__device__ void move_parts_of(const Place& place, const Call& call, int64_t part_bytes) {
  std::byte* out = place.board->out[place.rank];
  for (int source = 0; source < place.size; ++source) {
    const std::byte* in = place.board->in[source];
    if (call.kind == Kind::kAllToAll) in += place.rank * part_bytes;
    copy_bytes(out + source * part_bytes, in, part_bytes);
  }
}

__global__ void __launch_bounds__(kThreads) call_of_all(Place place, Call call, int64_t part_bytes) {
  __shared__ bool goes_on;
  Board& board = *place.board;
  const uint64_t number = board.calls[place.rank] + 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    board.in[place.rank] = call.in;
    board.out[place.rank] = call.out;
    store_release(board.begun + place.rank, number);
    goes_on = all_reach(place, board.begun, number);
  }
  __syncthreads();
  if (goes_on) {
    switch (call.kind) {
      case Kind::kAllReduce:
      case Kind::kReduceScatter: reduce_elements(place, call); break;
      case Kind::kAllGather:
      case Kind::kAllToAll: move_parts_of(place, call, part_bytes); break;
      case Kind::kBroadcast: copy_bytes(call.out, board.in[call.root], part_bytes); break;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  store_release(board.done + place.rank, number);
  (void)all_reach(place, board.done, number);
  board.calls[place.rank] = number;
}

__global__ void send_message(Place place, int peer, std::byte* data) {
  Board& board = *place.board;
  const uint64_t number = ++board.sends[place.rank][peer];
  board.message[place.rank][peer] = data;
  store_release(&board.sent[place.rank][peer], number);
  (void)reaches(place, &board.received[place.rank][peer], number);
}

__global__ void __launch_bounds__(kThreads)
    receive_message(Place place, int peer, std::byte* data, int64_t bytes) {
  __shared__ bool goes_on;
  Board& board = *place.board;
  const uint64_t number = board.receives[peer][place.rank] + 1;
  __syncthreads();
  if (threadIdx.x == 0) goes_on = reaches(place, &board.sent[peer][place.rank], number);
  __syncthreads();
  if (goes_on) copy_bytes(data, board.message[peer][place.rank], bytes);
  __syncthreads();
  if (threadIdx.x != 0) return;
  board.receives[peer][place.rank] = number;
  store_release(&board.received[peer][place.rank], number);
}

}  // namespace

cudaError_t issue_call(const Place& place, const Call& call, cudaStream_t stream) {
  call_of_all<<<1, kThreads, 0, stream>>>(place, call, call.count * dtype_bytes(call.dtype));
  return cudaGetLastError();
}

cudaError_t issue_send(const Place& place, int peer, std::byte* data, cudaStream_t stream) {
  send_message<<<1, 1, 0, stream>>>(place, peer, data);
  return cudaGetLastError();
}

cudaError_t issue_receive(const Place& place, int peer, std::byte* data, int64_t bytes, cudaStream_t stream) {
  receive_message<<<1, kThreads, 0, stream>>>(place, peer, data, bytes);
  return cudaGetLastError();
}

}  // namespace llm_dist::comm::shared_gpu
