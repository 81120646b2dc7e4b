#include "launch/endpoint_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

namespace llm_dist::launch {
namespace {

class EndpointFileTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  std::string text() const {
    std::ifstream file(path_);
    std::string line;
    return std::getline(file, line) ? line : "nothing";
  }
  void put(const std::string& line) const { std::ofstream(path_) << line << "\n"; }

  const std::string path_ = ::testing::TempDir() + "endpoint-" + std::to_string(getpid());
};

TEST_F(EndpointFileTest, IsThereFromTheUrlToTheEnd) {
  put("http://killed");
  std::optional<EndpointFile> file(std::in_place, path_);
  EXPECT_EQ(text(), "nothing");
  ASSERT_TRUE(file->write("http://a").ok());
  EXPECT_EQ(text(), "http://a");
  file.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(EndpointFileTest, AnothersStays) {
  {
    EndpointFile file(path_);
    ASSERT_TRUE(file.write("http://a").ok());
    put("http://b");
  }
  EXPECT_EQ(text(), "http://b");
  {
    EndpointFile never_written(path_ + "-other");
  }
  EXPECT_EQ(text(), "http://b");
}

TEST_F(EndpointFileTest, OnlyFilesAreRemovedAndNoneNeedBe) {
  {
    EndpointFile folder(::testing::TempDir());
  }
  EXPECT_TRUE(std::filesystem::is_directory(::testing::TempDir()));
  EndpointFile none("");
  EXPECT_TRUE(none.write("http://a").ok());
  EXPECT_FALSE(EndpointFile("/no/such/folder/url").write("http://a").ok());
}

}  // namespace
}  // namespace llm_dist::launch
