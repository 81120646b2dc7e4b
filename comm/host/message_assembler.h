// MessageAssembler: messages out of a byte stream. On the wire a message is its length (8 bytes, host order)
// and its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::comm {

using MessageHeader = uint64_t;

class MessageAssembler {
 public:
  // Messages up to `reserved_bytes` allocate nothing; longer than `max_bytes` are taken for garbage.
  MessageAssembler(size_t reserved_bytes, size_t max_bytes) : body_(reserved_bytes), max_bytes_(max_bytes) {}

  // Where the stream's next bytes go; never empty before complete().
  std::span<std::byte> wanted() {
    if (filled_ < sizeof(header_)) return std::as_writable_bytes(std::span(&header_, 1)).subspan(filled_);
    return std::span(body_).first(header_).subspan(filled_ - sizeof(header_));
  }
  Status advance(size_t n) {
    bool had_header = filled_ >= sizeof(header_);
    filled_ += n;
    if (had_header || filled_ < sizeof(header_)) return ok_status();
    if (header_ > max_bytes_) return data_loss(format("a message of {} bytes from rank 0", header_));
    if (header_ > body_.size()) body_.resize(header_);
    return ok_status();
  }
  bool complete() const { return filled_ >= sizeof(header_) && filled_ == sizeof(header_) + header_; }
  // The complete message, valid until the next wanted().
  std::span<const std::byte> take() {
    filled_ = 0;
    return std::span<const std::byte>(body_).first(header_);
  }

 private:
  MessageHeader header_ = 0;
  size_t filled_ = 0;
  std::vector<std::byte> body_;
  size_t max_bytes_;
};

}  // namespace llm_dist::comm
