#include "src/base/small_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/base/format.h"

namespace llm_dist {
namespace {

Status refused(const std::string& path, int error) {
  return {error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kFailedPrecondition,
          format("{} cannot be read: {}", path, std::strerror(error))};
}

Result<std::string> read_all(int file, const std::string& path, int64_t max_bytes) {
  constexpr size_t kPiece = 64 << 10;
  std::string text;
  while (true) {
    const size_t begin = text.size();
    text.resize(begin + kPiece);
    const ssize_t count = ::read(file, text.data() + begin, kPiece);
    const int error = errno;
    text.resize(begin + static_cast<size_t>(count > 0 ? count : 0));
    if (count < 0 && error == EINTR) continue;
    if (count < 0) return refused(path, error);
    if (count == 0) return text;
    if (static_cast<int64_t>(text.size()) > max_bytes)
      return invalid_argument(format("{} is longer than the {} bytes that are read of it", path, max_bytes));
  }
}

}  // namespace

Result<std::string> read_small_file(const std::string& path, int64_t max_bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return refused(path, errno);
  Result<std::string> text = read_all(file, path, max_bytes);
  ::close(file);
  return text;
}

}  // namespace llm_dist
