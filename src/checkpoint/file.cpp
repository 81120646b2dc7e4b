#include "src/checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <vector>

namespace llm_dist::checkpoint {
namespace {

Status errno_status(const std::string& path, std::string_view action) {
  int error = errno;
  auto message = format("{}: cannot {}: {}", path, action, std::strerror(error));
  return error == ENOENT || error == ENOTDIR ? not_found(message) : failed_precondition(message);
}

class PosixFile final : public RandomAccessFile {
 public:
  PosixFile(std::string path, int fd, int64_t size_bytes)
      : path_(std::move(path)), fd_(fd), size_bytes_(size_bytes) {}
  ~PosixFile() override { ::close(fd_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  const std::string& path() const override { return path_; }
  int64_t size_bytes() const override { return size_bytes_; }
  void will_need(int64_t offset, int64_t bytes) const override {
    ::posix_fadvise(fd_, offset, bytes, POSIX_FADV_WILLNEED);
  }
  Status read_at(int64_t offset, std::span<const iovec> buffers) const override;

 private:
  std::string path_;
  int fd_;
  int64_t size_bytes_;
};

// Drops the first `bytes` from the front of `buffers` and returns how many buffers are used up.
size_t drop_front(std::span<iovec> buffers, size_t bytes) {
  size_t used = 0;
  while (used < buffers.size() && bytes >= buffers[used].iov_len) bytes -= buffers[used++].iov_len;
  if (used < buffers.size()) {
    buffers[used].iov_base = static_cast<char*>(buffers[used].iov_base) + bytes;
    buffers[used].iov_len -= bytes;
  }
  return used;
}

Status PosixFile::read_at(int64_t offset, std::span<const iovec> buffers) const {
  std::vector<iovec> left_storage;
  std::array<iovec, 1> single{};
  std::span<iovec> left;
  if (buffers.size() == 1) {
    single[0] = buffers[0];
    left = single;
  } else {
    left_storage.assign(buffers.begin(), buffers.end());
    left = left_storage;
  }
  left = left.subspan(drop_front(left, 0));
  while (!left.empty()) {
    auto count = static_cast<int>(std::min<size_t>(left.size(), IOV_MAX));
    ssize_t got = ::preadv(fd_, left.data(), count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(path_, "read");
    if (got == 0) return data_loss(format("{}: the file ends at byte {}, more was expected", path_, offset));
    offset += got;
    left = left.subspan(drop_front(left, static_cast<size_t>(got)));
  }
  return ok_status();
}

}  // namespace

Status RandomAccessFile::read_bytes(int64_t offset, void* destination, int64_t bytes) const {
  iovec buffer{destination, static_cast<size_t>(bytes)};
  return read_at(offset, std::span<const iovec>(&buffer, 1));
}

Result<std::unique_ptr<RandomAccessFile>> open_posix_file(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno_status(path, "open");
  struct stat info{};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return failed_precondition(format("{}: not a regular file", path));
  }
  return std::unique_ptr<RandomAccessFile>(std::make_unique<PosixFile>(path, fd, info.st_size));
}

FileWriter::FileWriter(std::string path)
    : path_(std::move(path)), temporary_path_(format("{}.{}.partial", path_, ::getpid())) {
  fd_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) status_ = errno_status(temporary_path_, "create");
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_path_.c_str());
}

void FileWriter::write(const void* data, int64_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (status_.ok() && bytes > 0) {
    ssize_t put = ::write(fd_, next, static_cast<size_t>(bytes));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      status_ = errno_status(temporary_path_, "write");
      return;
    }
    next += put;
    bytes -= put;
    position_ += put;
  }
}

void FileWriter::write_zeros(int64_t bytes) {
  std::string zeros(static_cast<size_t>(bytes), '\0');
  write(zeros.data(), bytes);
}

Status FileWriter::finish() {
  RETURN_IF_ERROR(status_);
  if (::close(std::exchange(fd_, -1)) != 0) return errno_status(temporary_path_, "close");
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) return errno_status(path_, "rename to");
  return ok_status();
}

}  // namespace llm_dist::checkpoint
