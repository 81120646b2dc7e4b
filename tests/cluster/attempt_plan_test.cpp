// The coordinator's secret: one file, made whole or not at all.
#include "cluster/attempt_plan.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

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
    testing::FullDisk full;
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
