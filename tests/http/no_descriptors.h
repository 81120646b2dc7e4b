// While it lives this process has no file descriptor left; what is open stays open.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace llm_dist::http {

class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_GE(next, 0);
    close(next);
    // Few are to be filled up, whatever the machine allows.
    rlimit lower{.rlim_cur = static_cast<rlim_t>(next) + kFree, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
    for (int file = next; file >= 0;) {
      file = open("/dev/null", O_RDONLY | O_CLOEXEC);
      if (file >= 0) files_.push_back(file);
    }
  }
  ~NoDescriptors() {
    for (int file : files_) close(file);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  static constexpr rlim_t kFree = 64;
  rlimit before_{};
  std::vector<int> files_;
};

}  // namespace llm_dist::http
