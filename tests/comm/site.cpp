#include "tests/comm/site.h"

#include <algorithm>
#include <cstring>

#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::comm {
namespace {

// What the largest case holds at once: reduce_scatter of four parts of 4 MiB.
constexpr int64_t kMemoryBytes = 32 << 20;
constexpr int64_t kAlignment = 64;
constexpr std::byte kFence{0xa5};

device::Buffer must_allocate(device::Backend& backend, device::MemoryKind kind) {
  auto buffer = backend.allocate(kMemoryBytes, kind);
  CHECK(buffer.ok(), "{}", buffer.status().to_string());
  return std::move(buffer).value();
}

}  // namespace

Site::Site()
    : Site(device::make_cpu_backend({}),
           {},
           [](World& world, std::span<const int> world_ranks, const std::string& name, Duration timeout) {
             return world.make_communicator(world_ranks, name, {.timeout = timeout});
           }) {}

Site::Site(std::unique_ptr<device::Backend> backend, SiteTraits traits, MakeCommunicator make_communicator)
    : backend_(std::move(backend)),
      traits_(traits),
      make_communicator_(std::move(make_communicator)),
      device_memory_(must_allocate(*backend_, device::MemoryKind::kDevice)),
      pinned_memory_(must_allocate(*backend_, device::MemoryKind::kPinned)) {}

// Nothing is given back before everything is: a tensor's place is its own for as long as a case holds any.
SiteMemory::SiteMemory(Site& site, int64_t bytes) : site_(site), bytes_(bytes) {
  int64_t begin = site.taken_bytes_;
  site.taken_bytes_ += (whole_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  CHECK_LE(site.taken_bytes_, kMemoryBytes);
  ++site.num_taken_;
  device_ = site.device_memory_.data() + begin;
  host_ = site.pinned_memory_.data() + begin;
  std::fill_n(host_, whole_bytes(), kFence);
  std::fill_n(host_data(), bytes, std::byte{0});
}

SiteMemory::~SiteMemory() {
  if (--site_.num_taken_ == 0) site_.taken_bytes_ = 0;
}

bool SiteMemory::fences_stand() const {
  auto stands = [](const std::byte* fence) {
    return std::all_of(fence, fence + kFenceBytes, [](std::byte byte) { return byte == kFence; });
  };
  return stands(host_) && stands(host_data() + bytes_);
}

}  // namespace llm_dist::comm
