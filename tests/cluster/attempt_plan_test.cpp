// The coordinator's secret: one file, made whole or not at all.
#include "cluster/attempt_plan.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

// While it lives, files cannot grow.
class FullDisk {
 public:
  FullDisk() : handler_(signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  ~FullDisk() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  sighandler_t handler_;
  rlimit before_{};
};

TEST(AttemptSecrets, AreMadeOnceAndForTheOwnerAlone) {
  testing::TemporaryFolder folder;
  std::string file = folder.file("secret");
  std::ofstream(file + ".part") << "what a crash left, longer than a secret is: " << std::string(100, 'x');
  auto made = AttemptSecrets::open(file);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  auto again = AttemptSecrets::open(file);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(made.value().api_key(1, 1), again.value().api_key(1, 1));
  EXPECT_NE(made.value().api_key(1, 1), made.value().api_key(1, 2));
  EXPECT_NE(made.value().api_key(1, 1), made.value().registration(1, 1));
  EXPECT_FALSE(std::filesystem::exists(file + ".part"));
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(file).permissions(), perms::owner_read | perms::owner_write);
}

TEST(AttemptSecrets, AFullDiskLeavesNothingInTheWay) {
  testing::TemporaryFolder folder;
  std::string file = folder.file("secret");
  {
    FullDisk full;
    Status status = AttemptSecrets::open(file).status();
    EXPECT_NE(status.message().find("too large"), std::string::npos) << status.message();
  }
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(file + ".part"));
  EXPECT_TRUE(AttemptSecrets::open(file).ok());
}

TEST(AttemptSecrets, AForeignFileIsLeftAlone) {
  testing::TemporaryFolder folder;
  std::ofstream(folder.file("secret")) << "no secret";
  Status status = AttemptSecrets::open(folder.file("secret")).status();
  EXPECT_NE(status.message().find("holds no secret"), std::string::npos) << status.message();
  Status no_folder = AttemptSecrets::open(folder.file("missing/secret")).status();
  EXPECT_NE(no_folder.message().find("No such file"), std::string::npos) << no_folder.message();
}

}  // namespace
}  // namespace llm_dist::cluster
