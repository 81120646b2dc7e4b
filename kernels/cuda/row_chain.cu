// Every processor has one block of the kernel. A block has a share of each product's rows of W, whose bytes
// follow one another. A thread asks the copy engine for one pair of pieces of them after the other, whatever
// product it belongs to, and the block's warps take the pieces in turn: weights wait for nothing but room.
//
// What a product gives is sent to all blocks, in packets of four elements that carry the number of the call:
// who sees the number has the elements. All blocks keep the row in shared memory, and where a norm follows,
// they all add it to the residual stream, which they have there too, and norm it for themselves. There are
// two slots for packets, used in turn. A block sends for the second call only when it has seen all of the
// first, so who has all of the second may write to the first again, and to whatever all blocks had read by
// then.
//
// Between a block's reads and others' writes no fence stands: what it has read lies in its shared memory,
// behind a barrier, before it sends.
//
// Sums are taken in float, in an order that depends on k alone.
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/second_level.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_chain_kernel.h"

namespace llm_dist::kernels::chain {

struct alignas(16) Packet {
  uint64_t data;
  uint64_t number;
};

struct ChainMemory {
  uint64_t calls;    // made so far
  uint64_t arrived;  // blocks in all of them
  Packet packets[2][kMostSent / kPacketElements];
};

static_assert(sizeof(ChainMemory) <= RowChain::kMemoryBytes);

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;       // that compute
constexpr int kAllThreads = kThreads + kWarpSize;  // and a warp that asks for pieces
// By registers, so that a block leaves room for attention's; by shared memory only one fits a processor.
constexpr int kBlocks = 3;
// Pairs: enough to keep memory busy. Those beyond would come no sooner, and all else that a processor reads
// or writes would queue behind them.
constexpr int kOnTheWay = 8;
static_assert(kOnTheWay <= kPlaces);
constexpr uint32_t kMostPolls = 1u << 26;  // half a minute or so: a fault, not a wait

__device__ inline uint64_t load_number(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void count_arrival(uint64_t* count) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(count) : "memory");
}
__device__ inline void store_packet(Packet* to, uint64_t data, uint64_t number) {
  asm volatile(
      "{ .reg .b128 packet; mov.b128 packet, {%1, %2}; st.relaxed.gpu.global.b128 [%0], packet; }" ::"l"(to),
      "l"(data),
      "l"(number)
      : "memory");
}
__device__ inline Packet load_packet(const Packet* from) {
  Packet packet;
  asm volatile("{ .reg .b128 packet; ld.relaxed.gpu.global.b128 packet, [%2]; mov.b128 {%0, %1}, packet; }"
               : "=l"(packet.data), "=l"(packet.number)
               : "l"(from)
               : "memory");
  return packet;
}

// 128 bytes.
__device__ inline void ask_cache(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

__device__ inline void count_poll(uint32_t& polls) {
  if (++polls == kMostPolls) __trap();
}

// Of the threads that compute.
__device__ inline void meet_warps() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }

__device__ inline float add_up(float value) {
  __shared__ float partial[kWarps];
  value = warp_reduce(value, AddOp());
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = value;
  meet_warps();
  float sum = 0;
#pragma unroll
  for (float some : partial) sum += some;
  return sum;
}

// Of `count` things in groups of `granule`: what falls to this block.
struct BlockShare {
  int first;
  int count;
  __device__ BlockShare(int all, int granule) {
    const int groups = all / granule;
    const int blocks = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x);
    first = groups * block / blocks * granule;
    count = groups * (block + 1) / blocks * granule - first;
  }
};

template <typename T>
__device__ inline void unpack(uint4 raw, float (&values)[kLoad]) {
  const auto* words = reinterpret_cast<const uint32_t*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = pair_of(T(), words[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

// Where pairs of pieces stand. The i-th of all goes to place i % kPlaces.
struct Places {
  std::byte* memory;
  uint64_t* full;
  uint64_t* empty;

  __device__ static int place(int i) { return i % kPlaces; }
  __device__ static uint32_t parity(int i) { return static_cast<uint32_t>(i) / kPlaces % 2; }
  __device__ std::byte* pair(int i) const { return memory + place(i) * (kPair * kPieceBytes); }
  __device__ void wait(int i) const { barrier_wait(full + place(i), parity(i)); }
  __device__ void leave(int i) const { barrier_arrive(empty + place(i)); }
  __device__ void ask(int i, const void* from, uint32_t bytes, uint64_t policy) const {
    if (i >= kPlaces) barrier_wait(empty + place(i), parity(i - kPlaces));
    if (i >= kOnTheWay) wait(i - kOnTheWay);
    barrier_arrive_expecting(full + place(i), bytes);
    load_bytes(pair(i), from, bytes, full + place(i), policy);
  }
};

// What a block has of a product: rows of W that follow one another, of a gated one two such parts.
struct BlockPieces {
  int first;  // column of y
  int count;
  int parts;
  int pieces;  // of a part
  int pairs;
  __device__ static BlockPieces of(const ChainStep& step) {
    const BlockShare share(step.columns, step.sends ? kPacketElements : 1);
    const int pieces = share.count * step.pieces;
    return {share.first, share.count, step.gated ? 2 : 1, pieces, (pieces + kPair - 1) / kPair};
  }
};

// Asks for this block's pieces of all products.
template <typename T>
__device__ inline void bring_pieces(const ChainArgs& args, const BlockPieces* shares, const Places& places) {
  const uint64_t once = policy_read_once();
  int i = 0;
#pragma unroll 1
  for (int at = 0; at < args.count; ++at) {
    const ChainStep& step = args.steps[at];
    if (step.is_norm) continue;
    const BlockPieces mine = shares[at];
    const int piece = step.piece;
#pragma unroll 1
    for (int part = 0; part < mine.parts; ++part) {
      const T* from =
          static_cast<const T*>(step.w) + static_cast<int64_t>(mine.first + part * step.columns) * step.k;
#pragma unroll 1
      for (int left = mine.pieces; left > 0; left -= kPair, from += kPair * piece)
        places.ask(i++, from, static_cast<uint32_t>(min(left, kPair) * piece * sizeof(T)), once);
    }
  }
}

template <typename T>
struct Chain {
  const ChainArgs& args;
  const Places& places;
  T* x;
  float* partial;  // by piece of this block's share
  T* residual;
  int begin = 0;  // the first pair of the next product

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }

  // Of this lane's part of a piece of a row of W, with as many elements of x.
  __device__ static float multiply(const uint4* w, const uint4* x, int loads) {
    float sums[2] = {};
#pragma unroll 4
    for (int i = lane(); i < loads; i += kWarpSize) {
      float of_w[kLoad];
      float of_x[kLoad];
      unpack<T>(w[i], of_w);
      unpack<T>(x[i], of_x);
#pragma unroll
      for (int v = 0; v < kLoad; ++v) sums[v % 2] += of_w[v] * of_x[v];
    }
    return sums[0] + sums[1];
  }

  __device__ void multiply_all(const ChainStep& step, const BlockPieces& mine) {
    const bool first_lane = threadIdx.x % kWarpSize == 0;
    const int all = mine.parts * mine.pieces;
    const int of_row = step.pieces;
    const int loads = step.piece / kLoad;
    // Of the pieces in order, this warp's.
    int in_row = warp() % of_row;
    const int turn = kWarps % of_row;
#pragma unroll 1
    for (int i = warp(); i < all; i += kWarps) {
      const int part = i >= mine.pieces ? 1 : 0;
      const int in_part = i - part * mine.pieces;
      const int pair = begin + part * mine.pairs + in_part / kPair;
      places.wait(pair);
      const float some = multiply(reinterpret_cast<const uint4*>(places.pair(pair)) + in_part % kPair * loads,
                                  reinterpret_cast<const uint4*>(x) + in_row * loads,
                                  loads);
      __syncwarp();
      if (first_lane) {
        places.leave(pair);
        if (in_part % kPair == 0 && in_part + 1 == mine.pieces) places.leave(pair);  // there is no other
      }
      const float sum = warp_reduce(some, AddOp());
      if (first_lane) partial[i] = sum;
      in_row += turn;
      if (in_row >= of_row) in_row -= of_row;
    }
    begin += mine.parts * mine.pairs;
    meet_warps();
  }

  // The product of row `of_w` of W, whose pieces' sums begin at `first`.
  __device__ float finished(const ChainStep& step, int first, int of_w) const {
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < step.pieces; ++i) sum += partial[first + i];
    if (step.bias != nullptr) sum += to_float_dev(static_cast<const T*>(step.bias)[of_w]);
    return sum;
  }
  // Writes y, sends it as call `number`, or both.
  __device__ void hand_out(const ChainStep& step, const BlockPieces& share, uint64_t number) const {
    // Whole warps: neighbours pack what is sent.
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i - lane() < share.count; i += kThreads) {
      float value = 0;
      if (i < share.count) {
        const int column = share.first + i;
        value = finished(step, i * step.pieces, column);
        if (step.gated)
          value = silu(value) * finished(step, (share.count + i) * step.pieces, step.columns + column);
        if (step.floats) {
          static_cast<float*>(step.y)[column] = value;
        } else if (step.stores) {
          static_cast<T*>(step.y)[column] = from_float_dev<T>(value);
        }
      }
      if (!step.sends) continue;
      const uint32_t pair = pack_pair(T(), value, __shfl_down_sync(kFullWarp, value, 1));
      const uint32_t next = __shfl_down_sync(kFullWarp, pair, 2);
      if (lane() % kPacketElements == 0 && i < share.count)
        store_packet(args.memory->packets[number % 2] + (share.first + i) / kPacketElements,
                     pair | static_cast<uint64_t>(next) << 32,
                     number);
    }
    if (!step.sends) return;
    meet_warps();
    if (threadIdx.x == 0) count_arrival(&args.memory->arrived);
  }

  __device__ void bring_x(const ChainStep& step) const {
    const auto* from = static_cast<const uint4*>(step.x);
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < step.k / kLoad; i += kThreads)
      reinterpret_cast<uint4*>(x)[i] = load_from_second_level(from + i);
    meet_warps();
  }

  // Both packets of the eight elements from `element` on.
  __device__ uint4 receive(int element, uint64_t number) const {
    const Packet* from = args.memory->packets[number % 2] + element / kPacketElements;
    uint32_t polls = 0;
    while (true) {
      const Packet low = load_packet(from);
      const Packet high = load_packet(from + 1);
      if (low.number == number && high.number == number)
        return make_uint4(static_cast<uint32_t>(low.data),
                          static_cast<uint32_t>(low.data >> 32),
                          static_cast<uint32_t>(high.data),
                          static_cast<uint32_t>(high.data >> 32));
      count_poll(polls);
    }
  }

  // Returns when it is likely that all packets are there. One thread looks: packets that all of them ask for
  // again and again would keep those of others from coming.
  __device__ void await_blocks(uint64_t number) const {
    if (threadIdx.x == 0) {
      uint32_t polls = 0;
      while (load_number(&args.memory->arrived) < number * gridDim.x) count_poll(polls);
    }
    meet_warps();
  }

  __device__ void receive_x(const ChainStep& step, uint64_t number) const {
    await_blocks(number);
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) * kLoad; i < step.k; i += kThreads * kLoad)
      copy_load(x + i, receive(i, number));
    meet_warps();
  }

  __device__ void bring_residual() const {
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x) * kLoad; i < args.width; i += kThreads * kLoad) {
      const T* from = static_cast<const T*>(args.residual) + i;
      copy_load(residual + i, load_from_second_level(reinterpret_cast<const uint4*>(from)));
    }
  }

  __device__ void norm(const ChainStep& step, uint64_t number) const {
    const int first = static_cast<int>(threadIdx.x) * kLoad;
    constexpr int kTurn = kThreads * kLoad;
    // Nobody needs x now: the norm's weights wait there.
#pragma unroll 2
    for (int i = first; i < args.width; i += kTurn)
      copy_load(x + i, *reinterpret_cast<const uint4*>(static_cast<const T*>(step.weight) + i));
    await_blocks(number);
    float squares = 0;
#pragma unroll 2
    for (int i = first; i < args.width; i += kTurn) {
      float values[kLoad];
      float before[kLoad];
      unpack<T>(receive(i, number), values);
      load_vec<kLoad>(residual + i, before);
      add_into<kLoad>(before, values, residual + i);
      add_squares<kLoad>(values, squares);
    }
    const float scale = norm_scale(add_up(squares), args.width, step.epsilon);
#pragma unroll 2
    for (int i = first; i < args.width; i += kTurn) {
      float values[kLoad];
      float weights[kLoad];
      load_vec<kLoad>(residual + i, values);
      load_vec<kLoad>(x + i, weights);
      scale_into(values, scale, weights, values);
      store_vec<kLoad>(values, x + i);
    }
    meet_warps();
    write_share(x, step.y);
  }

  // This block's share of a row that all blocks have.
  __device__ void write_share(const T* row, void* to) const {
    const BlockShare share(args.width, 1);
    for (int i = static_cast<int>(threadIdx.x); i < share.count; i += kThreads)
      static_cast<T*>(to)[share.first + i] = row[share.first + i];
  }
  __device__ static void copy_load(T* to, uint4 raw) { *reinterpret_cast<uint4*>(to) = raw; }
};

template <typename T>
__global__ void __launch_bounds__(kAllThreads, kBlocks) run_chain(const __grid_constant__ ChainArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ uint64_t barriers[2 * kPlaces];
  __shared__ BlockPieces shares[RowChain::kMostSteps];
  const Places places{.memory = shared, .full = barriers, .empty = barriers + kPlaces};
  if (threadIdx.x == kThreads) {
#pragma unroll 1
    for (int i = 0; i < kPlaces; ++i) {
      barrier_init(places.full + i, 1);
      barrier_init(places.empty + i, kPair);
    }
    barrier_init_done();
  }
  if (threadIdx.x < args.count) shares[threadIdx.x] = BlockPieces::of(args.steps[threadIdx.x]);
  __syncthreads();
  if (threadIdx.x >= kThreads) {
    if (threadIdx.x == kThreads) bring_pieces<T>(args, shares, places);
    __syncwarp();
    wait_for_previous();
    let_next_start();
    return;
  }
  // Norms' weights come to the cache while there is time.
#pragma unroll 1
  for (int i = 0; i < args.count; ++i) {
    const int element = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * 64;
    if (args.steps[i].is_norm && element < args.width)
      ask_cache(static_cast<const T*>(args.steps[i].weight) + element);
  }
  std::byte* behind_places = shared + kPlacesBytes;
  std::byte* behind_x = behind_places + args.x_bytes;
  Chain<T> chain{.args = args,
                 .places = places,
                 .x = reinterpret_cast<T*>(behind_places),
                 .partial = reinterpret_cast<float*>(behind_x + args.width * sizeof(T)),
                 .residual = reinterpret_cast<T*>(behind_x)};
  wait_for_previous();
  uint64_t number = load_number(&args.memory->calls);
  chain.bring_residual();
#pragma unroll 1
  for (int i = 0; i < args.count; ++i) {
    const ChainStep& step = args.steps[i];
    if (i == args.count - 1) let_next_start();
    if (step.is_norm) {
      chain.norm(step, number);
      continue;
    }
    if (i == 0) {
      chain.bring_x(step);
    } else if (!args.steps[i - 1].is_norm) {
      chain.receive_x(step, number);
    }
    chain.multiply_all(step, shares[i]);
    if (step.sends) ++number;
    chain.hand_out(step, shares[i], number);
  }
  chain.write_share(chain.residual, args.residual);
  if (blockIdx.x == 0 && threadIdx.x == 0) args.memory->calls = number;
#endif
}

}  // namespace

bool fits_processors() {
  for (const void* kernel : {reinterpret_cast<const void*>(run_chain<__nv_bfloat16>),
                             reinterpret_cast<const void*>(run_chain<__half>)}) {
    int blocks = 0;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error == cudaSuccess)
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kAllThreads, kSharedBytes);
    if (error != cudaSuccess || blocks < 1) {
      (void)cudaGetLastError();
      return false;
    }
  }
  return true;
}

cudaError_t launch_row_chain(
    DType dtype, const ChainArgs& args, int processors, int shared_bytes, cudaStream_t stream) {
  const OverlappedLaunch launch{
      .grid = dim3(static_cast<unsigned>(processors)),
      .threads = kAllThreads,
      .stream = stream,
      .shared_bytes = shared_bytes,
  };
  return dtype == DType::kBF16 ? launch_overlapped(run_chain<__nv_bfloat16>, launch, args)
                               : launch_overlapped(run_chain<__half>, launch, args);
}

}  // namespace llm_dist::kernels::chain
