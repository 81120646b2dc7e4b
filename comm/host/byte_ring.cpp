#include "comm/host/byte_ring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "src/base/check.h"

namespace llm_dist::comm {

struct ByteRing::Header {
  uint64_t capacity = 0;
  int32_t readers = 0;
  std::atomic<uint32_t> writer_closed{0};
  alignas(64) std::atomic<uint64_t> committed{0};
  EventCount data_event;
  alignas(64) EventCount space_event;
};

struct alignas(64) ByteRing::Cursor {
  std::atomic<uint64_t> consumed{0};
  std::atomic<uint32_t> closed{0};
};

size_t ByteRing::memory_bytes(size_t capacity, int readers) {
  return sizeof(Header) + static_cast<size_t>(readers) * sizeof(Cursor) + capacity;
}

ByteRing ByteRing::format(std::byte* memory, size_t capacity, int readers) {
  CHECK(std::has_single_bit(capacity) && capacity >= 64, "ring of {} bytes", capacity);
  auto* header = new (memory) Header;
  header->capacity = capacity;
  header->readers = readers;
  for (int r = 0; r < readers; ++r)
    new (memory + sizeof(Header) + static_cast<size_t>(r) * sizeof(Cursor)) Cursor;
  return ByteRing(memory);
}

ByteRing ByteRing::attach(std::byte* memory) { return ByteRing(memory); }

ByteRing::ByteRing(std::byte* memory)
    : header_(std::launder(reinterpret_cast<Header*>(memory))),
      cursors_(std::launder(reinterpret_cast<Cursor*>(memory + sizeof(Header)))),
      data_(memory + sizeof(Header) + static_cast<size_t>(header_->readers) * sizeof(Cursor)),
      capacity_(header_->capacity),
      staged_(header_->committed.load(std::memory_order_relaxed)) {}

size_t ByteRing::room() const {
  uint64_t slowest = staged_;
  for (int r = 0; r < header_->readers; ++r) {
    if (cursors_[r].closed.load(std::memory_order_acquire) != 0) continue;
    slowest = std::min(slowest, cursors_[r].consumed.load(std::memory_order_acquire));
  }
  return capacity_ - (staged_ - slowest);
}

size_t ByteRing::stage(std::span<const std::byte> bytes) {
  size_t n = std::min(bytes.size(), room());
  copy_in(staged_, bytes.first(n));
  staged_ += n;
  return n;
}

void ByteRing::commit() {
  header_->committed.store(staged_, std::memory_order_release);
  header_->data_event.notify();
}

size_t ByteRing::readable(int reader) const {
  return header_->committed.load(std::memory_order_acquire) -
         cursors_[reader].consumed.load(std::memory_order_relaxed);
}

size_t ByteRing::read(int reader, std::span<std::byte> bytes) {
  size_t n = std::min(bytes.size(), readable(reader));
  if (n == 0) return 0;
  auto& consumed = cursors_[reader].consumed;
  uint64_t at = consumed.load(std::memory_order_relaxed);
  copy_out(at, bytes.first(n));
  consumed.store(at + n, std::memory_order_release);
  header_->space_event.notify();
  return n;
}

void ByteRing::close_reader(int reader) {
  cursors_[reader].closed.store(1, std::memory_order_release);
  header_->space_event.notify();
}

bool ByteRing::reader_closed(int reader) const {
  return cursors_[reader].closed.load(std::memory_order_acquire) != 0;
}

void ByteRing::close_writer() {
  header_->writer_closed.store(1, std::memory_order_release);
  header_->data_event.notify();
}

bool ByteRing::writer_closed() const { return header_->writer_closed.load(std::memory_order_acquire) != 0; }

int ByteRing::readers() const { return header_->readers; }
EventCount& ByteRing::data_event() const { return header_->data_event; }
EventCount& ByteRing::space_event() const { return header_->space_event; }

void ByteRing::copy_in(uint64_t at, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  size_t offset = at & (capacity_ - 1);
  size_t first = std::min(bytes.size(), capacity_ - offset);
  std::memcpy(data_ + offset, bytes.data(), first);
  if (first < bytes.size()) std::memcpy(data_, bytes.data() + first, bytes.size() - first);
}

void ByteRing::copy_out(uint64_t at, std::span<std::byte> bytes) const {
  size_t offset = at & (capacity_ - 1);
  size_t first = std::min(bytes.size(), capacity_ - offset);
  std::memcpy(bytes.data(), data_ + offset, first);
  if (first < bytes.size()) std::memcpy(bytes.data() + first, data_, bytes.size() - first);
}

}  // namespace llm_dist::comm
