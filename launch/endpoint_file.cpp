#include "launch/endpoint_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "launch/whole_file.h"

namespace llm_dist::launch {
namespace {

bool is_file(const std::string& path) {
  std::error_code not_there;
  return std::filesystem::is_regular_file(path, not_there);
}

std::string text_of(const std::string& path) {
  if (!is_file(path)) return "";
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void remove_file(const std::string& path) {
  std::error_code not_there;
  if (is_file(path)) std::filesystem::remove(path, not_there);
}

bool is_address(const std::string& text) { return text.empty() || text.starts_with("http"); }

// Over NFS only who may write may lock.
comm::Fd locked(const std::string& path) {
  comm::Fd file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (file.valid() && flock(file.get(), LOCK_EX | LOCK_NB) != 0) file.reset();
  return file;
}

// Of the socket that is there now, or empty. Its number alone may be given to the next one.
std::string identity(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return "";
  return format("{} {} {} {}", info.st_dev, info.st_ino, info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
}

}  // namespace

EndpointFile::EndpointFile(std::string path, ShutdownSignal& signal)
    : signal_(signal), path_(std::move(path)) {
  if (!path_.empty() && is_address(text_of(path_)) && locked(path_).valid()) remove_file(path_);
  signal_.set_on_exit([this] { remove(); });
}

EndpointFile::~EndpointFile() {
  signal_.set_on_exit(nullptr);
  remove();
}

Status EndpointFile::write(const std::string& url, const std::string& uds_path) {
  std::lock_guard lock(mutex_);
  if (removed_) return ok_status();
  uds_path_ = uds_path;
  socket_ = identity(uds_path);
  if (path_.empty()) return ok_status();
  if (!is_address(text_of(path_)))
    return failed_precondition(
        format("--endpoint-file {} holds something else than a server's address: name another file", path_));
  text_ = url + "\n";
  RETURN_IF_ERROR(write_whole_file(path_, text_));
  held_ = locked(path_);
  return ok_status();
}

void EndpointFile::remove() {
  std::lock_guard lock(mutex_);
  removed_ = true;
  if (!text_.empty() && text_of(path_) == text_) remove_file(path_);
  if (!socket_.empty() && identity(uds_path_) == socket_) unlink(uds_path_.c_str());
}

}  // namespace llm_dist::launch
