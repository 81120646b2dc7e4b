// NodeRing: the shared-memory half of the host channel. Rank 0 writes messages that the other ranks of its
// node read; each of them has a small ring of its own for reports the other way.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "comm/host/byte_ring.h"
#include "comm/host/host_channel.h"
#include "comm/host/message_assembler.h"
#include "comm/host/once_record.h"
#include "comm/host/segment.h"

namespace llm_dist::comm {

// One rank's view. Waiting calls return the abort's cause once there is one.
class NodeRing {
 public:
  static size_t memory_bytes(size_t ring_bytes, int readers);
  // Rank 0, before any other rank attaches.
  static void format(std::byte* memory, size_t ring_bytes, int readers);
  NodeRing(NodeMemory memory, const HostChannelOptions& options);

  // Writer. Waiting for room past the deadline is kDeadlineExceeded with the message half written.
  Status publish(std::span<const std::byte> message, Deadline deadline);
  std::optional<HostReport> try_take_report();
  void close_writer();

  // Reader.
  Result<std::span<const std::byte>> receive(Deadline deadline);
  Status report(std::span<const std::byte> bytes);
  void close_reader();

  void abort(const Status& cause);
  bool aborted() const;
  // Ok while not aborted.
  Status cause() const;

 private:
  struct Control;

  Status write_all(std::span<const std::byte> bytes, Deadline deadline);
  Status check_readers() const;

  NodeMemory memory_;
  Control* control_;
  ByteRing ring_;
  std::vector<ByteRing> report_rings_;  // [readers]
  int reader_;                          // this rank's index among the readers; -1: the writer
  Duration spin_;
  MessageAssembler assembler_;
  std::vector<std::byte> report_;  // the one taken last
  size_t next_report_ring_ = 0;
};

}  // namespace llm_dist::comm
