#include "launch/endpoint_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "launch/whole_file.h"

namespace llm_dist::launch {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void remove_file(const std::string& path) {
  std::error_code not_there;
  if (std::filesystem::is_regular_file(path, not_there)) std::filesystem::remove(path, not_there);
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
  remove_file(path_);
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
  text_ = url + "\n";
  return write_whole_file(path_, text_);
}

void EndpointFile::remove() {
  std::lock_guard lock(mutex_);
  removed_ = true;
  if (!text_.empty() && text_of(path_) == text_) remove_file(path_);
  if (!socket_.empty() && identity(uds_path_) == socket_) unlink(uds_path_.c_str());
}

}  // namespace llm_dist::launch
