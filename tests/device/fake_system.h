// A folder with files as the kernel shows them under /proc and /sys, made for one test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace llm_dist::device {

class FakeSystem {
 public:
  FakeSystem() {
    std::string path = ::testing::TempDir() + "llm-dist-system-XXXXXX";
    root_ = mkdtemp(path.data());
  }
  ~FakeSystem() { std::filesystem::remove_all(root_); }
  FakeSystem(const FakeSystem&) = delete;
  FakeSystem& operator=(const FakeSystem&) = delete;

  const std::string& root() const { return root_; }
  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  // `path` is below /sys/fs/cgroup.
  void put_group(const std::string& path, const std::string& text) const {
    put("/sys/fs/cgroup/" + path, text);
  }

 private:
  std::string root_;
};

}  // namespace llm_dist::device
