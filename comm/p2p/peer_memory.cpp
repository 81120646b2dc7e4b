#include "comm/p2p/peer_memory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "comm/p2p/exchange.h"
#include "comm/p2p/messages.h"
#include "comm/p2p/norm_sum.h"
#include "comm/p2p/peer_communicator.h"
#include "comm/p2p/shared_norm.h"
#include "src/device/cuda/cuda_error.h"

namespace llm_dist::comm {
namespace {

using device::cuda_status;

// As it travels between the hosts.
struct Card {
  uint64_t process = 0;  // where this module lies in it
  int64_t pid = 0;       // no two processes of a host share both
  uint64_t address = 0;
  int64_t bytes = 0;  // of its memory
  cudaUUID_t gpu{};
  cudaIpcMemHandle_t handle{};
};
static_assert(sizeof(Card) <= kPeerCardBytes);

uint64_t this_process() { return reinterpret_cast<uint64_t>(&make_peer_memory); }

Result<cudaUUID_t> uuid_of(int index) {
  cudaDeviceProp properties{};
  RETURN_IF_ERROR(cuda_status(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  return properties.uuid;
}

// −1: this process does not see it.
Result<int> find_gpu(const cudaUUID_t& wanted) {
  int count = 0;
  RETURN_IF_ERROR(cuda_status(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  for (int index = 0; index < count; ++index) {
    ASSIGN_OR_RETURN(cudaUUID_t uuid, uuid_of(index));
    if (std::memcmp(&uuid, &wanted, sizeof uuid) == 0) return index;
  }
  return -1;
}

// Ok when GPU `mine` can write to GPU `theirs` as the protocol wants it: over links that keep the atomicity
// of the memory model, so not over PCIe. Its own memory it reaches, too.
Status check_reach(int mine, int theirs) {
  if (mine == theirs) return ok_status();
  int can_access = 0;
  RETURN_IF_ERROR(cuda_status(cudaDeviceCanAccessPeer(&can_access, mine, theirs), "cudaDeviceCanAccessPeer"));
  if (can_access == 0) return failed_precondition("its GPU cannot be reached from here");
  int atomics = 0;
  RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, mine, theirs),
                  "cudaDeviceGetP2PAttribute"));
  return atomics != 0 ? ok_status() : failed_precondition("its GPU is not reached over NVLink");
}

Status enable_access(int mine, int theirs) {
  if (mine == theirs) return ok_status();
  cudaError_t error = cudaDeviceEnablePeerAccess(theirs, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) error = cudaSuccess;
  (void)cudaGetLastError();
  return cuda_status(error, "cudaDeviceEnablePeerAccess");
}

class CudaPeerMemory : public PeerMemory {
 public:
  explicit CudaPeerMemory(const PeerGroup& group) : resources_(std::make_unique<PeerResources>(group)) {}

  Result<std::string> prepare() override {
    Result<std::string> card = resources_->prepare();
    if (!card.ok()) (void)cudaGetLastError();  // the group goes on without
    return card;
  }
  Status open(std::span<const std::string> cards) override {
    Status status = resources_->open(cards);
    if (!status.ok()) (void)cudaGetLastError();  // likewise
    return status;
  }
  std::unique_ptr<Communicator> connect(std::unique_ptr<Communicator> fallback) override {
    return std::make_unique<PeerCommunicator>(std::move(resources_), std::move(fallback));
  }

 private:
  std::unique_ptr<PeerResources> resources_;
};

}  // namespace

PeerResources::~PeerResources() {
  if (abandoned_) return;
  (void)cudaSetDevice(group_.device_index);
  for (void* memory : mapped_) (void)cudaIpcCloseMemHandle(memory);
  // Memory that a peer has mapped must not be freed.
  bool all_left = group_.leave && group_.leave().ok();
  if (!all_left) return;
  (void)cudaFree(view_.memory[group_.info.rank]);
  (void)cudaFreeHost(aborted_);
  gates_.close();
}

void PeerResources::abort() {
  abandoned_ = true;
  if (aborted_ == nullptr) return;
  std::atomic_ref(*aborted_).store(1);
  gates_.open_all();
}

Status PeerResources::take_memory() {
  view_.rank = group_.info.rank;
  view_.size = group_.info.size;
  view_.layout = peer_layout(group_.info.size, group_.limits);
  RETURN_IF_ERROR(cuda_status(cudaSetDevice(group_.device_index), "cudaSetDevice"));
  auto bytes = static_cast<size_t>(view_.layout.bytes);
  void* memory = nullptr;
  RETURN_IF_ERROR(cuda_status(cudaMalloc(&memory, bytes), format("{} bytes for peers", bytes)));
  view_.memory[group_.info.rank] = static_cast<std::byte*>(memory);
  RETURN_IF_ERROR(cuda_status(cudaMemset(memory, 0, bytes), "cudaMemset"));
  if (group_.limits.norm_bytes > 0) {
    std::byte* terms = view_.memory[group_.info.rank] + view_.layout.norm_terms;
    const auto of_terms = static_cast<size_t>(norm_terms_bytes(group_.info.size));
    RETURN_IF_ERROR(cuda_status(cudaMemset(terms, 0xff, of_terms), "cudaMemset"));  // none has come
  }
  RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(nullptr), "clearing memory"));
  int mps = 0;
  RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, group_.device_index),
                              "asking for MPS"));
  view_.under_mps = mps != 0;
  void* word = nullptr;
  RETURN_IF_ERROR(cuda_status(
      cudaHostAlloc(&word, sizeof *aborted_, cudaHostAllocPortable | cudaHostAllocMapped), "a pinned word"));
  aborted_ = static_cast<uint32_t*>(word);
  *aborted_ = 0;
  view_.aborted = {
      .told = aborted_,
      .seen = reinterpret_cast<uint32_t*>(static_cast<std::byte*>(memory) + view_.layout.abort_seen)};
  if (group_.limits.message_bytes == 0) return ok_status();
  return cuda_status(gates_.make(view_), "the gates of messages");
}

Result<std::string> PeerResources::prepare() {
  if (group_.info.size > kMaxPeerRanks)
    return failed_precondition(format("there are more than {} ranks", kMaxPeerRanks));
  RETURN_IF_ERROR(take_memory());
  RETURN_IF_ERROR(cuda_status(load_all_reduce_kernels(group_.info.size), "the all-reduce kernels"));
  RETURN_IF_ERROR(cuda_status(load_exchange_kernels(group_.info.size), "the kernels of exchanges"));
  RETURN_IF_ERROR(cuda_status(load_norm_sum_kernels(group_.info.size), "the kernels of sums and norms"));
  RETURN_IF_ERROR(cuda_status(load_shared_norm_kernels(group_.info.size), "the kernels of shared norms"));
  RETURN_IF_ERROR(cuda_status(load_message_kernels(), "the kernels of messages"));
  std::byte* mine = view_.memory[group_.info.rank];
  Card card{.process = this_process(),
            .pid = getpid(),
            .address = reinterpret_cast<uint64_t>(mine),
            .bytes = view_.layout.bytes};
  ASSIGN_OR_RETURN(card.gpu, uuid_of(group_.device_index));
  RETURN_IF_ERROR(cuda_status(cudaIpcGetMemHandle(&card.handle, mine), "cudaIpcGetMemHandle"));
  std::string text(kPeerCardBytes, '\0');
  std::memcpy(text.data(), &card, sizeof card);
  return text;
}

Status PeerResources::open(std::span<const std::string> cards) {
  CHECK_EQ(static_cast<int>(cards.size()), group_.info.size);
  RETURN_IF_ERROR(cuda_status(cudaSetDevice(group_.device_index), "cudaSetDevice"));
  for (int peer = 0; peer < group_.info.size; ++peer) {
    if (peer == group_.info.rank) continue;
    Status status = open_peer(peer, cards[static_cast<size_t>(peer)]);
    if (!status.ok()) return status.with_context(format("rank {} of the group", peer));
  }
  return ok_status();
}

Status PeerResources::open_peer(int peer, const std::string& text) {
  Card card;
  if (text.size() != kPeerCardBytes) return data_loss("its card is damaged");
  std::memcpy(&card, text.data(), sizeof card);
  if (card.bytes != view_.layout.bytes) {
    return failed_precondition(
        format("it has {} bytes for its peers and this rank {}: have all ranks the same flags?",
               card.bytes,
               view_.layout.bytes));
  }
  ASSIGN_OR_RETURN(int theirs, find_gpu(card.gpu));
  if (theirs < 0) {
    return failed_precondition(
        "its GPU is hidden from this rank: let the launcher show each rank all GPUs of its host (Slurm: "
        "--gpus-per-node in place of --gpus-per-task)");
  }
  RETURN_IF_ERROR(check_reach(group_.device_index, theirs));
  view_.shares_gpu = view_.shares_gpu || theirs == group_.device_index;
  if (card.process == this_process() && card.pid == getpid()) {
    RETURN_IF_ERROR(enable_access(group_.device_index, theirs));
    view_.memory[peer] = reinterpret_cast<std::byte*>(card.address);
    return ok_status();
  }
  void* memory = nullptr;
  cudaError_t error = cudaIpcOpenMemHandle(&memory, card.handle, cudaIpcMemLazyEnablePeerAccess);
  (void)cudaGetLastError();
  RETURN_IF_ERROR(cuda_status(error, "cudaIpcOpenMemHandle"));
  mapped_.push_back(memory);
  view_.memory[peer] = static_cast<std::byte*>(memory);
  return ok_status();
}

std::unique_ptr<PeerMemory> make_peer_memory(const PeerGroup& group) {
  return std::make_unique<CudaPeerMemory>(group);
}

}  // namespace llm_dist::comm
