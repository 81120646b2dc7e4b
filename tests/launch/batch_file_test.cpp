#include "launch/batch_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iterator>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

class BatchFile : public testing::Test {
 protected:
  void TearDown() override { unlink(path_.c_str()); }
  void write(const std::string& text) { std::ofstream(path_) << text; }
  std::string content() {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string path_ = format("{}/llm-dist-batch-{}", testing::TempDir(), getpid());
};

TEST_F(BatchFile, LinesAreNumberedWithoutEmptyOnes) {
  write("{}\n\n  \r\n{\"a\":1}\nlast");
  auto input = BatchInput::open(path_);
  ASSERT_TRUE(input.ok());
  for (const char* text : {"{}", "{\"a\":1}", "last"}) {
    auto line = input->next();
    ASSERT_TRUE(line.has_value());
    EXPECT_EQ(line->text, text);
  }
  EXPECT_FALSE(input->next().has_value());
}

TEST_F(BatchFile, WhatIsAnsweredIsKnownAgainAndHalfALineIsCutOff) {
  {
    auto output = BatchOutput::open(path_);
    ASSERT_TRUE(output.ok()) << output.status().to_string();
    EXPECT_FALSE(output->holds(0));
    ASSERT_TRUE(output->append("{\"index\":2}").ok());
    ASSERT_TRUE(output->append("{\"index\":0}").ok());
  }
  std::ofstream(path_, std::ios::app) << "{\"index\":1,\"te";
  auto again = BatchOutput::open(path_);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_TRUE(again->holds(0));
  EXPECT_FALSE(again->holds(1));
  EXPECT_TRUE(again->holds(2));
  ASSERT_TRUE(again->append("{\"index\":1}").ok());
  EXPECT_EQ(content(), "{\"index\":2}\n{\"index\":0}\n{\"index\":1}\n");
}

TEST_F(BatchFile, OneWriterAtATime) {
  auto output = BatchOutput::open(path_);
  ASSERT_TRUE(output.ok());
  auto second = BatchOutput::open(path_);
  EXPECT_NE(second.status().message().find("another process"), std::string::npos);
}

TEST_F(BatchFile, AnotherFileIsNotOverwritten) {
  write("dear diary\n");
  EXPECT_EQ(BatchOutput::open(path_).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(content(), "dear diary\n");
  // Without an end of its line, which an answer that was being written has not either.
  for (const char* text : {"dear diary", "{\"prompt\":\"x\"}", "[1", "\"index\""}) {
    write(text);
    EXPECT_EQ(BatchOutput::open(path_).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(content(), text);
  }
}

TEST_F(BatchFile, AnswersBeginWithWhateverKeyTheyHave) {
  for (const char* text : {"{", "{\"", "{\"custom_id\":\"a\",\"err", "{\"index\":7}"}) {
    write(text);
    EXPECT_TRUE(BatchOutput::open(path_).ok()) << text;
    EXPECT_EQ(content(), "");
  }
}

TEST_F(BatchFile, WhatCannotBeReadAgainIsRefused) {
  EXPECT_EQ(BatchOutput::open("/dev/null").status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(BatchOutput::open(path_).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace llm_dist::launch
