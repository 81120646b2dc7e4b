#include "launch/endpoint_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "launch/exit_code.h"

namespace llm_dist::launch {
namespace {

class EndpointFileTest : public ::testing::Test {
 protected:
  void TearDown() override {
    std::filesystem::remove(path_);
    std::filesystem::remove(uds_path_);
  }
  std::string text() const {
    std::ifstream file(path_);
    std::string line;
    return std::getline(file, line) ? line : "nothing";
  }
  void put(const std::string& line) const { std::ofstream(path_) << line << "\n"; }
  // A server's socket; its file stays when it is closed.
  void listen() const {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    uds_path_.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    close(fd);
  }
  // Of a process of its own that writes the file, does `what` and is then sent SIGTERM.
  template <typename What>
  int code_after_a_signal(What what) const {
    const pid_t child = fork();
    if (child != 0) {
      int status = 0;
      waitpid(child, &status, 0);
      return exit_code_of(status);
    }
    ShutdownSignal signal;
    EndpointFile file(path_, signal);
    listen();
    if (!file.write("http+unix://a", uds_path_).ok()) _exit(1);
    what();
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(10));
    _exit(2);
  }

  const std::string path_ = ::testing::TempDir() + "endpoint-" + std::to_string(getpid());
  const std::string uds_path_ = path_ + "-socket";
};

TEST_F(EndpointFileTest, IsThereFromTheUrlToTheEnd) {
  ShutdownSignal signal;
  put("http://killed");
  std::optional<EndpointFile> file(std::in_place, path_, signal);
  EXPECT_EQ(text(), "nothing");
  ASSERT_TRUE(file->write("http://a").ok());
  EXPECT_EQ(text(), "http://a");
  file.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(EndpointFileTest, AnothersStays) {
  ShutdownSignal signal;
  {
    EndpointFile file(path_, signal);
    ASSERT_TRUE(file.write("http://a").ok());
    put("http://b");
  }
  EXPECT_EQ(text(), "http://b");
  {
    EndpointFile never_written(path_ + "-other", signal);
  }
  EXPECT_EQ(text(), "http://b");
  {
    EndpointFile file(path_, signal);
    listen();
    ASSERT_TRUE(file.write("http+unix://a", uds_path_).ok());
    std::filesystem::remove(uds_path_);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // more than the tick of a file's time
    listen();
  }
  EXPECT_TRUE(std::filesystem::exists(uds_path_));
}

TEST_F(EndpointFileTest, AServerThatLivesKeepsItsOwn) {
  ShutdownSignal signal;
  EndpointFile of_a(path_, signal);
  ASSERT_TRUE(of_a.write("http://a").ok());
  {
    EndpointFile of_one_that_finds_the_port_taken(path_, signal);
  }
  EXPECT_EQ(text(), "http://a");
}

TEST_F(EndpointFileTest, WhatIsNoAddressIsNotReplaced) {
  ShutdownSignal signal;
  put("precious");
  {
    EndpointFile file(path_, signal);
    EXPECT_FALSE(file.write("http://a").ok());
  }
  EXPECT_EQ(text(), "precious");
}

TEST_F(EndpointFileTest, OnceRemovedItIsNotWritten) {
  ShutdownSignal signal;
  EndpointFile file(path_, signal);
  file.remove();
  EXPECT_TRUE(file.write("http://a").ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(EndpointFileTest, ASignalThatEndsTheProcessAtOnceRemovesItAndTheSocket) {
  EXPECT_EQ(code_after_a_signal([] {}), kSignalExitBase + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(uds_path_));
}

TEST_F(EndpointFileTest, ASignalLeavesAnothers) {
  EXPECT_EQ(code_after_a_signal([this] { put("http://b"); }), kSignalExitBase + SIGTERM);
  EXPECT_EQ(text(), "http://b");
}

TEST_F(EndpointFileTest, OnlyFilesAreRemovedAndNoneNeedBe) {
  ShutdownSignal signal;
  {
    EndpointFile folder(::testing::TempDir(), signal);
  }
  EXPECT_TRUE(std::filesystem::is_directory(::testing::TempDir()));
  EndpointFile none("", signal);
  EXPECT_TRUE(none.write("http://a").ok());
  EXPECT_FALSE(EndpointFile("/no/such/folder/url", signal).write("http://a").ok());
}

}  // namespace
}  // namespace llm_dist::launch
