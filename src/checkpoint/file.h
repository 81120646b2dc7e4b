// RandomAccessFile: the only way this folder touches weight files, so that a test can count what is asked of
// the kernel.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "src/base/status.h"

namespace llm_dist::checkpoint {

class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual const std::string& path() const = 0;
  virtual int64_t size_bytes() const = 0;
  // Fills every buffer, in order, with the bytes from `offset` on. kDataLoss where the file ends before that.
  // Safe from several threads at once.
  virtual Status read_at(int64_t offset, std::span<const iovec> buffers) const = 0;
  // A hint that this range is read soon, piecemeal.
  virtual void will_need(int64_t offset, int64_t bytes) const = 0;

  Status read_bytes(int64_t offset, void* destination, int64_t bytes) const;
};

using OpenFile = std::function<Result<std::unique_ptr<RandomAccessFile>>(const std::string& path)>;

Result<std::unique_ptr<RandomAccessFile>> open_posix_file(const std::string& path);

// Appends to a new file, with errors kept until finish(). The file appears under its name only in finish().
class FileWriter {
 public:
  explicit FileWriter(std::string path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, int64_t bytes);
  void write_zeros(int64_t bytes);
  int64_t position() const { return position_; }
  Status finish();

 private:
  std::string path_;
  std::string temporary_path_;
  int fd_ = -1;
  int64_t position_ = 0;
  Status status_;
};

}  // namespace llm_dist::checkpoint
