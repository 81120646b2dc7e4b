#include "comm/nccl/nccl_communicator.h"

#include <cuda_runtime.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "src/base/log.h"
#include "src/device/cuda/cuda_error.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
// A library that is older than the header has no such function: then it is null.
extern "C" ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int)
    __attribute__((weak));
#endif

namespace llm_dist::comm {
namespace {

using device::cuda_status;

constexpr int kPartBytes = 1024;
// Sums of so few bytes have kernels of their own where all ranks know each other's memory, which need one
// trip between GPUs instead of one for every rank: 4.5 µs instead of 6.6 for 16 KiB and two ranks. From 64
// KiB on they are slower than the others.
constexpr size_t kSumBytes = 32 << 10;
constexpr double kEndingSeconds = 1;

Status nccl_status(ncclResult_t result, ncclComm_t comm, std::string_view what) {
  if (result == ncclSuccess || result == ncclInProgress) return ok_status();
  StatusCode code = result == ncclRemoteError ? StatusCode::kUnavailable : StatusCode::kInternal;
  const char* detail = ncclGetLastError(comm);
  return {code, format("{}: {} {}", what, ncclGetErrorString(result), detail == nullptr ? "" : detail)};
}

ncclDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return ncclFloat32;
    case DType::kF16: return ncclFloat16;
    case DType::kBF16: return ncclBfloat16;
    case DType::kI32: return ncclInt32;
    case DType::kI64: return ncclInt64;
    case DType::kU8:
    case DType::kF8E4M3: return ncclUint8;  // moved, never summed
  }
  return ncclUint8;
}

ncclRedOp_t reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return ncclSum;
    case ReduceOp::kMax: return ncclMax;
    case ReduceOp::kMin: return ncclMin;
  }
  return ncclSum;
}

size_t count_of(const Tensor& tensor) {
  CHECK(tensor.is_contiguous(), "{}", tensor.to_string());
  return static_cast<size_t>(tensor.numel());
}

// Runs every kind of collective once, so that no later call has a peer to wait for: it only issues.
ncclResult_t connect_peers(ncclComm_t comm, int size, std::byte* memory, cudaStream_t stream) {
  auto at = [memory](int part) { return memory + part * kPartBytes; };
  ncclResult_t result = ncclAllReduce(memory, memory, kPartBytes / 4, ncclFloat32, ncclSum, comm, stream);
  if (result == ncclSuccess)
    result = ncclAllGather(at(size), memory, kPartBytes / 4, ncclFloat32, comm, stream);
  if (result == ncclSuccess)
    result = ncclReduceScatter(memory, at(size), kPartBytes / 4, ncclFloat32, ncclSum, comm, stream);
  if (result == ncclSuccess)
    result = ncclBroadcast(memory, memory, kPartBytes / 4, ncclFloat32, 0, comm, stream);
  if (result != ncclSuccess) return result;
  (void)ncclGroupStart();
  for (int peer = 0; peer < size; ++peer) {
    (void)ncclSend(at(peer), kPartBytes / 4, ncclFloat32, peer, comm, stream);
    (void)ncclRecv(at(size + peer), kPartBytes / 4, ncclFloat32, peer, comm, stream);
  }
  return ncclGroupEnd();
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
// Whether every rank of the group says yes, by NCCL itself: nobody here knows the World that comm::agree()
// asks. Every rank calls it. word: four bytes of the device.
Status all_agree(bool mine, bool& agreed, ncclComm_t comm, std::byte* word, cudaStream_t stream) {
  int32_t answer = mine ? 1 : 0;
  RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(word, &answer, sizeof answer, cudaMemcpyHostToDevice, stream),
                              "an answer to peers"));
  RETURN_IF_ERROR(nccl_status(ncclAllReduce(word, word, 1, ncclInt32, ncclMin, comm, stream), comm, "NCCL"));
  RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(&answer, word, sizeof answer, cudaMemcpyDeviceToHost, stream),
                              "the peers' answers"));
  RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "the peers' answers"));
  agreed = answer != 0;
  return ok_status();
}

// Memory that every rank of the group may write to; null on all of them where one has none. Every rank calls
// it. To register memory is to wait for the peers, so they agree before that. word: as all_agree()'s.
Status make_sum_memory(ncclComm_t comm, std::byte* word, cudaStream_t stream, std::byte*& made) {
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  const bool allocated = ncclCommWindowRegister != nullptr &&
                         ncclMemAlloc(&memory, kSumBytes) == ncclSuccess &&
                         cudaMemset(memory, 0, kSumBytes) == cudaSuccess;
  bool agreed = false;
  RETURN_IF_ERROR(all_agree(allocated, agreed, comm, word, stream));
  if (allocated && agreed) {
    const bool registered =
        ncclCommWindowRegister(comm, memory, kSumBytes, &window, NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess &&
        window != nullptr;
    RETURN_IF_ERROR(all_agree(registered, agreed, comm, word, stream));
  }
  if (agreed) {
    made = static_cast<std::byte*>(memory);
  } else if (memory != nullptr && window == nullptr) {  // NCCL keeps what it has registered
    (void)ncclMemFree(memory);
  }
  return ok_status();
}
#else
Status make_sum_memory(ncclComm_t, std::byte*, cudaStream_t, std::byte*&) { return ok_status(); }
#endif

// What the connecting thread and whoever waits for it share: the thread may outlive the wait.
struct Connecting {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool abandoned = false;  // nobody waits any more
  Status status;
  ncclComm_t comm = nullptr;  // once done, and only of a group in good order
  std::byte* sum_memory = nullptr;

  void finish(Status result, ncclComm_t made, std::byte* memory) {
    {
      std::lock_guard lock(mutex);
      status = std::move(result);
      done = true;
      sum_memory = memory;
      if (status.ok() && !abandoned) std::swap(comm, made);
      changed.notify_all();
    }
    if (made != nullptr) (void)ncclCommAbort(made);
  }
};

Status connect_all(const NcclGroup& group, const ncclUniqueId& id, ncclComm_t& comm, std::byte*& sum_memory) {
  RETURN_IF_ERROR(cuda_status(cudaSetDevice(group.device_index), "cudaSetDevice"));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  RETURN_IF_ERROR(nccl_status(
      ncclCommInitRankConfig(&comm, group.info.size, id, group.info.rank, &config), comm, "NCCL"));
  void* memory = nullptr;
  cudaStream_t stream = nullptr;
  RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream"));
  Status status =
      cuda_status(cudaMalloc(&memory, static_cast<size_t>(2 * group.info.size) * kPartBytes), "cudaMalloc");
  if (status.ok()) {
    status = nccl_status(
        connect_peers(comm, group.info.size, static_cast<std::byte*>(memory), stream), comm, "NCCL");
  }
  if (status.ok()) status = cuda_status(cudaStreamSynchronize(stream), "the first collectives");
  if (status.ok() && group.info.size > 1)
    status = make_sum_memory(comm, static_cast<std::byte*>(memory), stream, sum_memory);
  (void)cudaFree(memory);
  (void)cudaStreamDestroy(stream);
  return status;
}

}  // namespace

Result<std::unique_ptr<Communicator>> NcclCommunicator::connect(const NcclGroup& group, Deadline deadline) {
  ncclUniqueId id;
  if (group.id.size() != sizeof id) return data_loss("the id of an NCCL group");
  std::memcpy(&id, group.id.data(), sizeof id);
  auto connecting = std::make_shared<Connecting>();
  std::thread([connecting, group, id] {
    ncclComm_t comm = nullptr;
    std::byte* sum_memory = nullptr;
    Status status = connect_all(group, id, comm, sum_memory);
    connecting->finish(std::move(status), comm, sum_memory);
  }).detach();
  std::unique_lock lock(connecting->mutex);
  if (!connecting->changed.wait_until(lock, deadline.when(), [&] { return connecting->done; })) {
    connecting->abandoned = true;
    return deadline_exceeded(format(
        "the GPUs of group {} did not get in touch with each other in time: is a rank late, and does "
        "NCCL find a network between the hosts? NCCL_DEBUG=INFO says what it tries, NCCL_SOCKET_IFNAME "
        "names the interface",
        group.info.name));
  }
  if (!connecting->status.ok())
    return connecting->status.with_context(format("connecting the GPUs of group {}", group.info.name));
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(group));
  made->comm_ = connecting->comm;
  made->sum_memory_ = connecting->sum_memory;
  made->sum_bytes_ = connecting->sum_memory == nullptr ? 0 : kSumBytes;
  return std::unique_ptr<Communicator>(std::move(made));
}

// A communicator that ends on a thread of its own.
class NcclCommunicator::Ending {
 public:
  static std::shared_ptr<Ending> start(ncclComm_t comm) {
    auto ending = std::make_shared<Ending>();
    std::thread([ending, comm] {
      (void)ncclCommAbort(comm);
      std::lock_guard lock(ending->mutex_);
      ending->done_ = true;
      ending->changed_.notify_all();
    }).detach();
    return ending;
  }
  // False when it takes longer.
  bool wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.when(), [this] { return done_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

NcclCommunicator::~NcclCommunicator() {
  // The process may be about to end, and NCCL must not be at work then.
  std::shared_ptr<Ending> ending = ending_.load();
  if (ending != nullptr && !ending->wait(Deadline::after_seconds(kEndingSeconds)))
    log_warning("NCCL did not end group {} within {} s", info_.name, kEndingSeconds);
  if (comm_ == nullptr || aborted_.load()) return;
  // Of a group in good order everything issued has run: there is nobody left to tell, and nothing to flush.
  (void)ncclCommAbort(comm_);
  if (sum_memory_ != nullptr) (void)ncclMemFree(sum_memory_);
}

template <typename Call>
void NcclCommunicator::issue(device::Stream& stream, const char* what, Call&& call) {
  CHECK(stream.device().type == DeviceType::kCuda, "{} of NCCL on a stream of another device", what);
  auto* on = static_cast<cudaStream_t>(stream.native());
  Status status = error_.get();
  if (status.ok()) status = stream.error();
  if (status.ok()) {
    cudaSetDevice(group_.device_index);
    status = nccl_status(call(on), comm_, what);
    if (!status.ok()) error_.set(status);
  }
  if (!status.ok()) stream.fail(std::move(status));
}

void NcclCommunicator::all_reduce(const Tensor& data, ReduceOp op, device::Stream& stream) {
  if (data.numel() == 0) return;
  issue(stream, "all_reduce", [&](cudaStream_t on) {
    return ncclAllReduce(
        data.data, data.data, count_of(data), data_type(data.dtype), reduction(op), comm_, on);
  });
}

void NcclCommunicator::all_gather(const Tensor& in, const Tensor& out, device::Stream& stream) {
  CHECK_EQ(in.numel() * info_.size, out.numel());
  if (in.numel() == 0) return;
  issue(stream, "all_gather", [&](cudaStream_t on) {
    return ncclAllGather(in.data, out.data, count_of(in), data_type(in.dtype), comm_, on);
  });
}

void NcclCommunicator::reduce_scatter(const Tensor& in,
                                      const Tensor& out,
                                      ReduceOp op,
                                      device::Stream& stream) {
  CHECK_EQ(out.numel() * info_.size, in.numel());
  if (in.numel() == 0) return;
  issue(stream, "reduce_scatter", [&](cudaStream_t on) {
    return ncclReduceScatter(in.data, out.data, count_of(out), data_type(in.dtype), reduction(op), comm_, on);
  });
}

void NcclCommunicator::broadcast(const Tensor& data, int root, device::Stream& stream) {
  if (data.numel() == 0) return;
  issue(stream, "broadcast", [&](cudaStream_t on) {
    return ncclBroadcast(data.data, data.data, count_of(data), data_type(data.dtype), root, comm_, on);
  });
}

void NcclCommunicator::send(const Tensor& data, int peer, device::Stream& stream) {
  if (data.numel() == 0) return;
  issue(stream, "send", [&](cudaStream_t on) {
    return ncclSend(data.data, count_of(data), data_type(data.dtype), peer, comm_, on);
  });
}

void NcclCommunicator::recv(const Tensor& data, int peer, device::Stream& stream) {
  if (data.numel() == 0) return;
  issue(stream, "recv", [&](cudaStream_t on) {
    return ncclRecv(data.data, count_of(data), data_type(data.dtype), peer, comm_, on);
  });
}

void NcclCommunicator::all_to_all(const Tensor& in, const Tensor& out, device::Stream& stream) {
  CHECK_EQ(in.numel(), out.numel());
  if (in.numel() == 0) return;
  const size_t part = count_of(in) / static_cast<size_t>(info_.size);
  const size_t part_bytes = part * static_cast<size_t>(dtype_bytes(in.dtype));
  issue(stream, "all_to_all", [&](cudaStream_t on) {
    (void)ncclGroupStart();
    for (int peer = 0; peer < info_.size; ++peer) {
      const size_t at = part_bytes * static_cast<size_t>(peer);
      (void)ncclSend(static_cast<std::byte*>(in.data) + at, part, data_type(in.dtype), peer, comm_, on);
      (void)ncclRecv(static_cast<std::byte*>(out.data) + at, part, data_type(in.dtype), peer, comm_, on);
    }
    return ncclGroupEnd();  // an error of any call inside comes back here
  });
}

Status NcclCommunicator::poll() const {
  RETURN_IF_ERROR(error_.get());
  ncclResult_t state = ncclSuccess;
  ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  Status status = nccl_status(asked == ncclSuccess ? state : asked, comm_, "group " + info_.name);
  if (!status.ok()) error_.set(status);
  return status;
}

void NcclCommunicator::abort(Status cause) {
  error_.set(std::move(cause));
  // Ending a communicator takes its time, and whoever aborts has none to lose.
  if (!aborted_.exchange(true)) ending_.store(Ending::start(comm_));
}

}  // namespace llm_dist::comm
