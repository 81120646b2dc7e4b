// Site: where a rank under test lives: its device, how its groups are made there, and what that backend
// promises beyond what all do. Every case of the suite gets one beside the World.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/world.h"
#include "src/device/backend.h"

namespace llm_dist::comm {

// The defaults are those of host memory: threads, MPI, TCP.
struct SiteTraits {
  // Sums have the bits of adding up in rank order; otherwise those of some order, the same on all ranks.
  bool sums_in_rank_order = true;
  // An operation whose peer stays away runs into the group's timeout, an abort ends the peers' operations
  // too, and both fail the stream. Otherwise the host that waits for the stream sees to all three.
  bool operations_end_themselves = true;
  // Ranks may issue to several groups in different orders, on streams that stall and take any task.
  bool streams_may_stall = true;
  // By when everyone has left a group that was aborted.
  double abort_seconds = 3;
};

// Used by its rank's thread. Outlives the groups and tensors made with it.
class Site {
 public:
  using MakeCommunicator = std::function<Result<std::unique_ptr<Communicator>>(
      World& world, std::span<const int> world_ranks, const std::string& name, Duration timeout)>;

  // Ranks on the CPU, whose groups are the world's own.
  Site();
  Site(std::unique_ptr<device::Backend> backend, SiteTraits traits, MakeCommunicator make_communicator);

  const SiteTraits& traits() const { return traits_; }
  device::Backend& backend() { return *backend_; }
  Result<std::unique_ptr<Communicator>> make_communicator(World& world,
                                                          std::span<const int> world_ranks,
                                                          const std::string& name,
                                                          Duration timeout) const {
    return make_communicator_(world, world_ranks, name, timeout);
  }

  // Holds `comm` until let_go(): a device's group goes when no peer can be in an operation of it any more.
  void keep(std::shared_ptr<Communicator> comm) { kept_.push_back(std::move(comm)); }
  void let_go() { kept_.clear(); }

 private:
  friend class SiteMemory;

  std::unique_ptr<device::Backend> backend_;
  SiteTraits traits_;
  MakeCommunicator make_communicator_;
  // Allocated once: making and freeing memory of one GPU may wait for the others, whose operations may wait
  // for this rank's next call.
  device::Buffer device_memory_;
  device::Buffer pinned_memory_;
  int64_t taken_bytes_ = 0;
  int num_taken_ = 0;
  std::vector<std::shared_ptr<Communicator>> kept_;
};

// `bytes` of device memory and as many of pinned host memory, both between fences whose pattern an upload
// writes and a download brings back. Valid while the site lives.
class SiteMemory {
 public:
  static constexpr int64_t kFenceBytes = 64;

  SiteMemory(Site& site, int64_t bytes);
  ~SiteMemory();
  SiteMemory(const SiteMemory&) = delete;
  SiteMemory& operator=(const SiteMemory&) = delete;

  std::byte* device_data() const { return device_ + kFenceBytes; }
  std::byte* host_data() const { return host_ + kFenceBytes; }
  Device where() const { return site_.backend().device(); }
  // In stream order; the host's copy stays as it is until the stream gets there.
  void upload(device::Stream& stream) const { stream.copy(whole(device_, where()), whole(host_, {})); }
  void download(device::Stream& stream) const { stream.copy(whole(host_, {}), whole(device_, where())); }
  // Whether the host's fences are untouched.
  bool fences_stand() const;

 private:
  int64_t whole_bytes() const { return bytes_ + 2 * kFenceBytes; }
  Tensor whole(std::byte* data, Device at) const {
    return Tensor::contiguous(data, DType::kU8, {whole_bytes()}, at);
  }

  Site& site_;
  std::byte* device_ = nullptr;
  std::byte* host_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace llm_dist::comm
