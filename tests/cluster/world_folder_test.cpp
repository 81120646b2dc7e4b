#include "cluster/world_folder.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cluster/local_launcher.h"
#include "src/base/format.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster::testing {
namespace {

class WorldFolder : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(attempt_); }
  void TearDown() override { remove_world_folder(attempt_); }
  std::string made() {
    Result<std::string> world = make_world_folder(attempt_);
    EXPECT_TRUE(world.ok()) << world.status().to_string();
    std::ofstream(world.value() + "/segment") << "x";
    std::filesystem::create_directories(world.value() + "/session/1");
    return world.value();
  }

  TemporaryFolder folder_;
  std::string attempt_ = folder_.file("attempt");
};

TEST_F(WorldFolder, IsOfOneUserAndGoesWithAllThatIsInIt) {
  std::string world = made();
  struct stat info{};
  ASSERT_EQ(stat(world.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(world.starts_with("/dev/shm/"));
  remove_world_folder(attempt_);
  EXPECT_FALSE(std::filesystem::exists(world));
  remove_world_folder(attempt_);  // nothing is left to remove
}

TEST_F(WorldFolder, AnAttemptHasOne) {
  std::string first = made();
  EXPECT_FALSE(make_world_folder(attempt_).ok());
  remove_world_folder(attempt_);
  EXPECT_FALSE(std::filesystem::exists(first));
}

TEST_F(WorldFolder, NothingElseIsRemoved) {
  std::filesystem::create_directories(folder_.file("precious"));
  std::filesystem::create_symlink(folder_.file("precious"), attempt_ + "/world");
  remove_world_folder(attempt_);
  EXPECT_TRUE(std::filesystem::exists(folder_.file("precious")));
}

// As after the death of the keeper.
TEST_F(WorldFolder, ASweepRemovesItOnceTheProcessesAreGone) {
  std::string world = made();
  std::string mark = format("{}={}", kMarkVariable, attempt_);
  std::string script = format("while :; do echo x > {}/again; done 2> /dev/null", world);
  const char* words[] = {"sh", "-c", script.c_str(), nullptr};
  const char* environment[] = {mark.c_str(), nullptr};
  pid_t pid = 0;
  ASSERT_EQ(
      posix_spawn(
          &pid, "/bin/sh", nullptr, nullptr, const_cast<char**>(words), const_cast<char**>(environment)),
      0);
  // What is just being executed shows no environment yet.
  while (processes_with(kMarkVariable, attempt_).value().empty()) std::this_thread::yield();
  EXPECT_EQ(make_local_launcher({})->sweep(attempt_, attempt_).value(), 1);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, WNOHANG), pid) << "it is not awaited";
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_FALSE(std::filesystem::exists(world));
}

}  // namespace
}  // namespace llm_dist::cluster::testing
