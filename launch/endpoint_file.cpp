#include "launch/endpoint_file.h"

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

}  // namespace

EndpointFile::EndpointFile(std::string path) : path_(std::move(path)) { remove_file(path_); }

EndpointFile::~EndpointFile() {
  if (!text_.empty() && text_of(path_) == text_) remove_file(path_);
}

Status EndpointFile::write(const std::string& url) {
  if (path_.empty()) return ok_status();
  text_ = url + "\n";
  return write_whole_file(path_, text_);
}

}  // namespace llm_dist::launch
