#include "comm/mapped_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace llm_dist::comm {
namespace {

class Segment {
 public:
  explicit Segment(std::string path) : path_(std::move(path)) {
    int fd = open(path_.c_str(), O_CREAT | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
    EXPECT_GE(fd, 0) << path_;
    EXPECT_EQ(ftruncate(fd, kBytes), 0);
    address_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(address_, MAP_FAILED);
    close(fd);
  }
  ~Segment() {
    unmap();
    unlink(path_.c_str());
  }
  void unmap() {
    if (address_ != nullptr) munmap(address_, kBytes);
    address_ = nullptr;
  }

 private:
  static constexpr size_t kBytes = 8192;
  std::string path_;
  void* address_ = nullptr;
};

TEST(MappedFiles, AreThoseThatThisProcessHasMappedNow) {
  std::string prefix = "/dev/shm/llm-dist-test-" + std::to_string(getpid()) + "-";
  Segment a(prefix + "a");
  Segment b(prefix + "b");
  b.unmap();
  EXPECT_EQ(mapped_files(prefix), std::vector<std::string>{prefix + "a"});
  unlink((prefix + "a").c_str());
  EXPECT_TRUE(mapped_files(prefix).empty());
}

}  // namespace
}  // namespace llm_dist::comm
