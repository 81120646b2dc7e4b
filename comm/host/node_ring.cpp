#include "comm/host/node_ring.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "src/base/check.h"
#include "src/base/format.h"

namespace llm_dist::comm {
namespace {

constexpr size_t kReportRingBytes = size_t{1} << 14;
static_assert(kReportRingBytes > kMaxReportBytes + sizeof(MessageHeader));

constexpr size_t aligned(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

// Spinning pays only where no rank waits for the core that spins.
Duration spin_limit(size_t ranks) {
  return std::thread::hardware_concurrency() > ranks ? std::chrono::microseconds(5) : Duration::zero();
}

}  // namespace

struct NodeRing::Control {
  OnceRecord<PlainCause> cause;
};

namespace {

constexpr size_t kControlBytes = 512 + 64;

size_t report_ring_offset(size_t ring_bytes, int readers, int reader) {
  return kControlBytes + aligned(ByteRing::memory_bytes(ring_bytes, readers)) +
         static_cast<size_t>(reader) * aligned(ByteRing::memory_bytes(kReportRingBytes, 1));
}

}  // namespace

size_t NodeRing::memory_bytes(size_t ring_bytes, int readers) {
  return report_ring_offset(ring_bytes, readers, readers);
}

void NodeRing::format(std::byte* memory, size_t ring_bytes, int readers) {
  static_assert(sizeof(Control) <= kControlBytes);
  new (memory) Control;
  ByteRing::format(memory + kControlBytes, ring_bytes, readers);
  for (int r = 0; r < readers; ++r)
    ByteRing::format(memory + report_ring_offset(ring_bytes, readers, r), kReportRingBytes, 1);
}

NodeRing::NodeRing(NodeMemory memory, const HostChannelOptions& options)
    : memory_(std::move(memory)),
      control_(std::launder(reinterpret_cast<Control*>(memory_.segment.data()))),
      ring_(ByteRing::attach(memory_.segment.data() + kControlBytes)),
      spin_(spin_limit(memory_.members.size())),
      assembler_(options.reserved_message_bytes, options.max_message_bytes),
      report_(kMaxReportBytes) {
  int readers = ring_.readers();
  CHECK_EQ(readers + 1, static_cast<int>(memory_.members.size()));
  auto here = std::find(memory_.members.begin(), memory_.members.end(), options.world.rank);
  reader_ = static_cast<int>(here - memory_.members.begin()) - 1;
  for (int r = 0; r < readers; ++r)
    report_rings_.push_back(
        ByteRing::attach(memory_.segment.data() + report_ring_offset(ring_.capacity(), readers, r)));
}

Status NodeRing::check_readers() const {
  for (int r = 0; r < ring_.readers(); ++r)
    if (ring_.reader_closed(r))
      return unavailable(
          llm_dist::format("rank {} has left the channel", memory_.members[static_cast<size_t>(r) + 1]));
  return ok_status();
}

Status NodeRing::publish(std::span<const std::byte> message, Deadline deadline) {
  if (aborted()) return cause();
  RETURN_IF_ERROR(check_readers());
  MessageHeader header = message.size();
  RETURN_IF_ERROR(write_all(std::as_bytes(std::span(&header, 1)), deadline));
  RETURN_IF_ERROR(write_all(message, deadline));
  ring_.commit();
  return ok_status();
}

// Commits only to make room, so that a message that fits wakes its readers once.
Status NodeRing::write_all(std::span<const std::byte> bytes, Deadline deadline) {
  while (true) {
    bytes = bytes.subspan(ring_.stage(bytes));
    if (bytes.empty()) return ok_status();
    ring_.commit();
    bool woke = ring_.space_event().wait([&] { return ring_.has_room() || aborted(); }, deadline, spin_);
    if (aborted()) return cause();
    if (!woke) return deadline_exceeded("publish: a rank does not read");
  }
}

Result<std::span<const std::byte>> NodeRing::receive(Deadline deadline) {
  while (true) {
    bool woke = ring_.data_event().wait(
        [&] { return ring_.readable(reader_) > 0 || aborted() || ring_.writer_closed(); }, deadline, spin_);
    if (aborted()) return cause();
    if (!woke) return deadline_exceeded("receive: no message");
    size_t n = ring_.read(reader_, assembler_.wanted());
    // The close is stored after the last bytes, so none can come once it is seen with nothing to read.
    if (n == 0 && ring_.writer_closed() && ring_.readable(reader_) == 0)
      return unavailable("rank 0 has closed the channel");
    RETURN_IF_ERROR(assembler_.advance(n));
    if (assembler_.complete()) return assembler_.take();
  }
}

Status NodeRing::report(std::span<const std::byte> bytes) {
  if (aborted()) return cause();
  if (ring_.writer_closed()) return unavailable("rank 0 has closed the channel");
  auto& ring = report_rings_[static_cast<size_t>(reader_)];
  MessageHeader header = bytes.size();
  if (ring.room() < sizeof(header) + bytes.size()) return resource_exhausted("rank 0 takes no reports");
  ring.stage(std::as_bytes(std::span(&header, 1)));
  ring.stage(bytes);
  ring.commit();
  return ok_status();
}

std::optional<HostReport> NodeRing::try_take_report() {
  for (size_t tried = 0; tried < report_rings_.size(); ++tried) {
    size_t index = next_report_ring_;
    next_report_ring_ = (next_report_ring_ + 1) % report_rings_.size();
    auto& ring = report_rings_[index];
    MessageHeader bytes = 0;
    if (ring.read(0, std::as_writable_bytes(std::span(&bytes, 1))) == 0) continue;
    CHECK_LE(bytes, report_.size());
    ring.read(0, std::span(report_).first(bytes));  // committed together with its length
    return HostReport{.rank = memory_.members[index + 1], .bytes = std::span(report_).first(bytes)};
  }
  return std::nullopt;
}

void NodeRing::close_writer() { ring_.close_writer(); }
void NodeRing::close_reader() { ring_.close_reader(reader_); }

void NodeRing::abort(const Status& cause) {
  control_->cause.try_set(to_plain(cause));
  ring_.data_event().notify();
  ring_.space_event().notify();
}

bool NodeRing::aborted() const { return control_->cause.begun(); }

Status NodeRing::cause() const {
  if (!aborted()) return ok_status();
  for (int i = 0; i < 100; ++i) {
    if (auto plain = control_->cause.get()) return to_status(*plain);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return llm_dist::aborted("the rank that aborted died before it could say why");
}

}  // namespace llm_dist::comm
