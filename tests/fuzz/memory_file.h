// MemoryFile: a weight file whose bytes are the fuzz input's.
#pragma once

#include <algorithm>
#include <compare>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/checkpoint/file.h"
#include "src/checkpoint/slice.h"
#include "tests/fuzz/fuzz.h"

namespace llm_dist::fuzz {

class MemoryFile : public checkpoint::RandomAccessFile {
 public:
  MemoryFile(std::string path, std::string_view bytes) : path_(std::move(path)), bytes_(bytes) {}

  const std::string& path() const override { return path_; }
  int64_t size_bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  Status read_at(int64_t offset, std::span<const iovec> buffers) const override {
    CHECK(offset >= 0);
    for (const iovec& buffer : buffers) {
      auto begin = static_cast<size_t>(offset);
      if (begin > bytes_.size() || buffer.iov_len > bytes_.size() - begin)
        return data_loss(path_ + ": the file ends");
      if (buffer.iov_len > 0) std::memcpy(buffer.iov_base, bytes_.data() + begin, buffer.iov_len);
      offset += static_cast<int64_t>(buffer.iov_len);
    }
    return ok_status();
  }
  void will_need(int64_t, int64_t) const override {}

 private:
  std::string path_;
  std::string_view bytes_;
};

struct ByteRange {
  int64_t begin = 0;
  int64_t bytes = 0;

  auto operator<=>(const ByteRange&) const = default;
};

// Each lies in the file, alone.
inline void expect_apart(std::vector<ByteRange> ranges, int64_t file_bytes) {
  std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const ByteRange& range : ranges) {
    CHECK(range.begin >= end && range.bytes >= 0, "{} bytes at {}, behind {}", range.bytes, range.begin, end);
    CHECK(range.begin <= file_bytes && range.bytes <= file_bytes - range.begin,
          "{} bytes at {}",
          range.bytes,
          range.begin);
    end = range.begin + range.bytes;
  }
}

// Every tensor lies in the file, alone. Returns their bytes together.
inline int64_t expect_apart(std::span<const checkpoint::TensorInfo> tensors, int64_t file_bytes) {
  std::vector<ByteRange> ranges;
  int64_t total = 0;
  for (const checkpoint::TensorInfo& tensor : tensors) {
    CHECK(tensor.rows >= 0 && tensor.cols >= 0, "{}", tensor.name);
    ranges.push_back({tensor.offset, tensor.bytes()});
    total += tensor.bytes();
  }
  expect_apart(std::move(ranges), file_bytes);
  return total;
}

}  // namespace llm_dist::fuzz
