// ByteRing: a stream of bytes from one writer to several readers through memory that processes may share.
// Every reader sees every byte; the writer never overtakes the slowest reader.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/host/event_count.h"

namespace llm_dist::comm {

// A view of the ring; several may look at one ring, one of them writing and one for each reader index.
// Nothing here waits: callers do, on data_event() and space_event().
class ByteRing {
 public:
  // capacity: a power of two. The memory is aligned to 64 bytes.
  static size_t memory_bytes(size_t capacity, int readers);
  // Makes a ring of `memory`, before anybody attaches.
  static ByteRing format(std::byte* memory, size_t capacity, int readers);
  static ByteRing attach(std::byte* memory);

  // Writer: copies as much of `bytes` as there is room for and returns how much; readers see it after
  // commit().
  size_t stage(std::span<const std::byte> bytes);
  void commit();
  // Writer: room for at least one byte more.
  bool has_room() const { return room() > 0; }
  // Writer: bytes that fit now.
  size_t room() const;

  // Reader: copies and consumes what is there, at most bytes.size(); returns how much.
  size_t read(int reader, std::span<std::byte> bytes);
  size_t readable(int reader) const;

  // A closed reader no longer holds the writer back. The writer's end closes once everything is committed.
  void close_reader(int reader);
  bool reader_closed(int reader) const;
  void close_writer();
  bool writer_closed() const;

  int readers() const;
  size_t capacity() const { return capacity_; }
  EventCount& data_event() const;   // committed bytes, the writer's close
  EventCount& space_event() const;  // consumed bytes, a reader's close

 private:
  struct Header;
  struct Cursor;
  explicit ByteRing(std::byte* memory);
  void copy_in(uint64_t at, std::span<const std::byte> bytes);
  void copy_out(uint64_t at, std::span<std::byte> bytes) const;

  Header* header_ = nullptr;
  Cursor* cursors_ = nullptr;  // [readers]
  std::byte* data_ = nullptr;  // [capacity]
  size_t capacity_ = 0;
  uint64_t staged_ = 0;  // the writer's own position, ahead of the committed one
};

}  // namespace llm_dist::comm
