#include "comm/host/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "src/base/log.h"

namespace llm_dist::comm {
namespace {

struct Prefix {
  uint64_t bytes = 0;
  Secret secret{};
};
constexpr size_t kPrefixBytes = 64;
static_assert(sizeof(Prefix) <= kPrefixBytes);

// Not a host name.
std::string node_of_its_own(size_t rank) { return format("#{}", rank); }

Status system_error(std::string_view what) {
  return failed_precondition(format("{}: {}", what, std::strerror(errno)));
}

Result<std::string> offer_bytes(const Result<Segment>& segment) {
  if (!segment.ok()) return segment.status();
  return to_bytes(segment->valid() ? segment->offer() : SegmentOffer{});
}

Result<Segment> attach_gathered(const std::string& bytes) {
  SegmentOffer offer;
  if (!from_bytes(bytes, &offer)) return data_loss("segment offer of another version of this program");
  return Segment::attach(offer);
}

}  // namespace

Result<Segment> Segment::create(size_t bytes) {
  ASSIGN_OR_RETURN(Secret secret, draw_secret());
  Fd file(::memfd_create("llm-dist", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return system_error("memfd_create");
  size_t total = bytes + kPrefixBytes;
  if (::fchmod(file.get(), 0600) != 0) return system_error("fchmod");
  if (::ftruncate(file.get(), static_cast<off_t>(total)) != 0) return system_error("ftruncate");
  // Nobody can shrink it under the others, which would kill them with SIGBUS.
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  ASSIGN_OR_RETURN(Segment segment, map(std::move(file), total));
  new (segment.base_) Prefix{.bytes = total, .secret = secret};
  return segment;
}

Result<Segment> Segment::attach(const SegmentOffer& offer) {
  std::array<char, 64> path;
  std::snprintf(
      path.data(), path.size(), "/proc/%lld/fd/%d", static_cast<long long>(offer.owner.pid), offer.fd);
  Fd file(::open(path.data(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return system_error(path.data());
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) return system_error("fstat");
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) != offer.bytes)
    return failed_precondition(format("{} is not the shared memory that was offered", path.data()));
  ASSIGN_OR_RETURN(Segment segment, map(std::move(file), offer.bytes));
  const auto* prefix = reinterpret_cast<const Prefix*>(segment.base_);
  if (prefix->bytes != offer.bytes || !secrets_equal(prefix->secret, offer.secret))
    return failed_precondition(format("{} does not hold the secret of this launch", path.data()));
  segment.close_file();
  return segment;
}

Result<Segment> Segment::map(Fd file, size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return system_error("mmap of shared memory");
  Segment segment;
  segment.base_ = static_cast<std::byte*>(base);
  segment.mapped_bytes_ = bytes;
  segment.file_ = std::move(file);
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      file_(std::move(other.file_)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(file_, other.file_);
  return *this;
}

Segment::~Segment() {
  if (base_ != nullptr) ::munmap(base_, mapped_bytes_);
}

std::byte* Segment::data() const { return base_ + kPrefixBytes; }

SegmentOffer Segment::offer() const {
  const auto* prefix = reinterpret_cast<const Prefix*>(base_);
  return {.owner = current_process(), .fd = file_.get(), .bytes = prefix->bytes, .secret = prefix->secret};
}

std::vector<std::string> node_ids(const HostWorld& world) {
  if (!world.force_sockets) return world.hosts;
  std::vector<std::string> nodes;
  nodes.reserve(world.hosts.size());
  for (size_t r = 0; r < world.hosts.size(); ++r) nodes.push_back(node_of_its_own(r));
  return nodes;
}

std::vector<int> node_members(const std::vector<std::string>& nodes, int rank) {
  std::vector<int> members;
  for (size_t r = 0; r < nodes.size(); ++r)
    if (nodes[r] == nodes[static_cast<size_t>(rank)]) members.push_back(static_cast<int>(r));
  return members;
}

Result<NodeMemory> share_node_memory(const HostWorld& world,
                                     size_t bytes_here,
                                     const std::function<void(std::byte* memory)>& format,
                                     std::vector<std::string>* nodes) {
  NodeMemory memory{.members = node_members(*nodes, world.rank)};
  bool leads = memory.members.front() == world.rank;
  Result<Segment> segment =
      leads && bytes_here > 0 ? Segment::create(bytes_here) : Result<Segment>(Segment());
  if (segment.ok() && segment->valid()) format(segment->data());
  ASSIGN_OR_RETURN(auto offers, gather_or_fail(world, offer_bytes(segment)));
  if (!leads && bytes_here > 0)
    segment = attach_gathered(offers[static_cast<size_t>(memory.members.front())]);
  ASSIGN_OR_RETURN(auto attached, gather_or_fail(world, std::string(segment.ok() ? "1" : "0")));
  if (segment.ok())
    memory.segment = std::move(segment).value();
  else
    log_warning("this host's ranks use sockets instead of shared memory: {}", segment.status().message());
  memory.segment.close_file();

  const std::vector<std::string> before = *nodes;
  for (size_t failed = 0; failed < attached.size(); ++failed) {
    if (attached[failed] == "1") continue;
    for (size_t r = 0; r < before.size(); ++r)
      if (before[r] == before[failed]) (*nodes)[r] = node_of_its_own(r);
  }
  size_t shared_by = memory.members.size();
  memory.members = node_members(*nodes, world.rank);
  if (memory.members.size() < shared_by) memory.segment = Segment();
  return memory;
}

}  // namespace llm_dist::comm
