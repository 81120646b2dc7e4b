#include "cluster/file_contents.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "src/base/format.h"
#include "src/http/digest.h"

namespace llm_dist::cluster {
namespace {

constexpr int kNameBytes = 16;
constexpr size_t kBufferBytes = 1 << 16;

Status disk_error(const std::string& path, int error) {
  std::string message = format("{}: {}", path, strerror(error));
  return error == ENOSPC || error == EDQUOT ? resource_exhausted(message) : unavailable(message);
}

Status sync_folder(const std::string& folder) {
  int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return disk_error(folder, errno);
  int error = fsync(file) == 0 ? 0 : errno;
  ::close(file);
  return error == 0 ? ok_status() : disk_error(folder, error);
}

class ContentSource : public http::BodySource {
 public:
  ContentSource(int file, uint64_t bytes, std::string path)
      : file_(file), bytes_(bytes), path_(std::move(path)) {}
  ~ContentSource() override { ::close(file_); }
  ContentSource(const ContentSource&) = delete;
  ContentSource& operator=(const ContentSource&) = delete;

  uint64_t bytes() const override { return bytes_; }
  Status read(std::span<char> piece) override {
    while (!piece.empty()) {
      ssize_t count = ::read(file_, piece.data(), piece.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        return data_loss(format("{}: {}", path_, count < 0 ? strerror(errno) : "shorter than it was"));
      }
      piece = piece.subspan(static_cast<size_t>(count));
    }
    return ok_status();
  }

 private:
  const int file_;
  const uint64_t bytes_;
  const std::string path_;
};

}  // namespace

Result<std::unique_ptr<ContentWriter>> ContentWriter::create(const std::string& folder) {
  std::string name = http::random_hex(kNameBytes);
  std::string path = folder + "/" + name;
  int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return disk_error(path, errno);
  return std::unique_ptr<ContentWriter>(new ContentWriter(folder, name, file));
}

ContentWriter::~ContentWriter() {
  if (file_ >= 0) ::close(file_);
  if (!kept_) ::unlink((folder_ + "/" + name_).c_str());
}

Status ContentWriter::write(std::string_view bytes) {
  bytes_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() < kBufferBytes) {
    buffer_ += bytes;
    return ok_status();
  }
  RETURN_IF_ERROR(write_out(buffer_));
  buffer_.clear();
  return write_out(bytes);
}

Status ContentWriter::write_out(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t count = ::write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return disk_error(folder_, errno);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return ok_status();
}

Status ContentWriter::finish() {
  RETURN_IF_ERROR(write_out(buffer_));
  buffer_.clear();
  if (fsync(file_) != 0) return disk_error(folder_, errno);
  return sync_folder(folder_);
}

Status FileContents::prepare() const {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return failed_precondition(format("cannot make {}: {}", folder_, error.message()));
  chmod(folder_.c_str(), S_IRWXU);
  std::string parent = std::filesystem::path(folder_).parent_path();
  return sync_folder(parent.empty() ? "." : parent);
}

Result<std::shared_ptr<http::BodySource>> FileContents::open(const std::string& name) const {
  int file = ::open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
  struct stat about{};
  if (file >= 0 && fstat(file, &about) == 0) {
    return std::shared_ptr<http::BodySource>(
        std::make_shared<ContentSource>(file, static_cast<uint64_t>(about.st_size), path(name)));
  }
  Status error = data_loss(format("the content {} cannot be read: {}", path(name), strerror(errno)));
  if (file >= 0) ::close(file);
  return error;
}

Result<uint64_t> FileContents::free_bytes() const {
  struct statvfs about{};
  if (::statvfs(folder_.c_str(), &about) != 0) return disk_error(folder_, errno);
  return static_cast<uint64_t>(about.f_bavail) * about.f_frsize;
}

void FileContents::remove(const std::string& name) const { ::unlink(path(name).c_str()); }

int FileContents::sweep(const std::vector<std::string>& known) const {
  std::set<std::string> kept(known.begin(), known.end());
  std::vector<std::string> rubbish;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    std::string name = entry.path().filename();
    if (!kept.contains(name)) rubbish.push_back(name);
  }
  for (const std::string& name : rubbish) remove(name);
  return static_cast<int>(rubbish.size());
}

}  // namespace llm_dist::cluster
