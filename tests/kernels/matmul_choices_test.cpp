// MatmulChoices: what one run saves another finds, and nothing damaged or foreign is taken.
#include "kernels/cuda/matmul_choices.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "kernels/cuda/streamed_division.h"

namespace llm_dist::kernels {
namespace {

constexpr MatmulChoices::Algorithm kFirst = {1, 0xffffffffffffffff, 0, 3, 0xdeadbeef, 0, 0, 8};
constexpr MatmulChoices::Algorithm kSecond = {2, 2, 2, 2, 2, 2, 2, 2};
constexpr MatmulShape kShape{.m = 32, .n = 6144, .k = 4096, .x_stride = 4096, .y_stride = 6144};

MatmulShape with_rows(int64_t m) {
  MatmulShape shape = kShape;
  shape.m = m;
  return shape;
}

TEST(StreamedDivision, IsWhatItsCodeSays) {
  using enum StreamedDivision::Form;
  for (StreamedDivision::Form form : {kParts, kEven, kWhole}) {
    for (bool wide : {false, true}) {
      for (int sharing : {1, 2, 4}) {
        for (int parts = 1; parts <= StreamedDivision::kMostParts; ++parts) {
          const StreamedDivision division{.form = form, .wide = wide, .sharing = sharing, .parts = parts};
          EXPECT_TRUE(StreamedDivision::of_code(division.code()) == division) << division.code();
        }
      }
    }
  }
}

class MatmulChoicesTest : public testing::Test {
 protected:
  MatmulChoicesTest()
      : folder_(testing::TempDir() + "matmul-choices-" + std::to_string(::getpid()) + "/below/another") {}
  ~MatmulChoicesTest() override {
    std::filesystem::remove_all(testing::TempDir() + "matmul-choices-" + std::to_string(::getpid()));
  }

  MatmulChoices choices(const std::string& environment = "GPU, driver 1") { return {folder_, environment}; }
  static std::string content(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string folder_;
};

TEST_F(MatmulChoicesTest, AnotherRunFindsWhatWasSaved) {
  MatmulChoices first = choices();
  ASSERT_TRUE(first.load().ok()) << "no file is no error";
  first.add(kShape, kFirst);
  ASSERT_TRUE(first.save().ok());
  MatmulChoices later = choices();
  ASSERT_TRUE(later.load().ok());
  ASSERT_NE(later.find(kShape), nullptr);
  EXPECT_EQ(*later.find(kShape), kFirst);
  EXPECT_EQ(later.find(with_rows(33)), nullptr);
  MatmulShape biased = kShape;
  biased.has_bias = true;
  EXPECT_EQ(later.find(biased), nullptr);
}

TEST_F(MatmulChoicesTest, FindsTheNearestShapeWithAFewRowsMore) {
  MatmulChoices all = choices();
  all.add(with_rows(32), kFirst);
  all.add(with_rows(40), kSecond);
  ASSERT_NE(all.find_near(with_rows(31)), nullptr);
  EXPECT_EQ(*all.find_near(with_rows(31)), kFirst);
  EXPECT_EQ(*all.find_near(with_rows(25)), kFirst);
  EXPECT_EQ(*all.find_near(with_rows(33)), kSecond);
  EXPECT_EQ(all.find_near(with_rows(24)), nullptr) << "eight rows more";
  EXPECT_EQ(all.find_near(with_rows(32)), nullptr) << "its own rows are not more, and 40 are eight more";
  EXPECT_EQ(all.find_near(with_rows(41)), nullptr);
  MatmulShape biased = with_rows(31);
  biased.has_bias = true;
  EXPECT_EQ(all.find_near(biased), nullptr);
}

TEST_F(MatmulChoicesTest, RanksThatSaveSideBySideLoseNothing) {
  MatmulChoices one = choices();
  MatmulChoices other = choices();
  one.add(with_rows(1), kFirst);
  other.add(with_rows(2), kSecond);
  ASSERT_TRUE(one.save().ok());
  ASSERT_TRUE(other.save().ok());
  MatmulChoices later = choices();
  ASSERT_TRUE(later.load().ok());
  EXPECT_NE(later.find(with_rows(1)), nullptr);
  EXPECT_NE(later.find(with_rows(2)), nullptr);
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_EQ(entry.path().extension(), ".txt") << "a part was left";
}

TEST_F(MatmulChoicesTest, RanksOfOneProcessThatSaveAtTheSameTimeLeaveAWholeFile) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([this, rank] {
      for (int64_t round = 0; round < 50; ++round) {
        MatmulChoices mine = choices();
        EXPECT_TRUE(mine.load().ok());
        for (int64_t i = 0; i < 50; ++i) mine.add(with_rows(1000 * round + 100 * rank + i), kFirst);
        const Status saved = mine.save();
        EXPECT_TRUE(saved.ok()) << saved.to_string();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_TRUE(choices().load().ok());
}

TEST_F(MatmulChoicesTest, AnotherDriverHasChoicesOfItsOwn) {
  MatmulChoices first = choices("GPU, driver 1");
  first.add(kShape, kFirst);
  ASSERT_TRUE(first.save().ok());
  MatmulChoices other = choices("GPU, driver 2");
  ASSERT_TRUE(other.load().ok());
  EXPECT_EQ(other.find(kShape), nullptr);
}

TEST_F(MatmulChoicesTest, DamageIsToldAndNothingTaken) {
  MatmulChoices first = choices();
  first.add(kShape, kFirst);
  first.add(with_rows(64), kSecond);
  ASSERT_TRUE(first.save().ok());
  const std::string whole = content(first.path());
  // Cut anywhere, a line with a word too few, letters for numbers, another machine's environment.
  std::vector<std::string> damaged;
  for (size_t length = 0; length + 1 < whole.size(); length += 7) damaged.push_back(whole.substr(0, length));
  damaged.push_back(std::string(whole).replace(whole.find("6144"), 4, "many"));
  damaged.push_back(std::string(whole).replace(whole.find("GPU"), 3, "TPU"));
  damaged.push_back(std::string(whole).replace(whole.find(" 6144"), 5, ""));
  for (const std::string& text : damaged) {
    std::ofstream(first.path()) << text;
    MatmulChoices later = choices();
    EXPECT_EQ(later.load().code(), StatusCode::kDataLoss) << text;
    EXPECT_EQ(later.find(kShape), nullptr) << text;
    later.add(kShape, kSecond);
    ASSERT_TRUE(later.save().ok()) << "a damaged file is replaced";
    MatmulChoices again = choices();
    ASSERT_TRUE(again.load().ok());
    EXPECT_EQ(*again.find(kShape), kSecond);
  }
}

TEST_F(MatmulChoicesTest, AFolderThatCannotBeWrittenIsToldAndNoFolderIsFine) {
  std::filesystem::create_directories(std::filesystem::path(folder_).parent_path());
  std::ofstream(folder_) << "a file where the folder should be";
  MatmulChoices blocked = choices();
  blocked.add(kShape, kFirst);
  EXPECT_EQ(blocked.save().code(), StatusCode::kUnavailable);
  MatmulChoices nowhere("", "GPU");
  nowhere.add(kShape, kFirst);
  EXPECT_TRUE(nowhere.load().ok());
  EXPECT_TRUE(nowhere.save().ok());
  EXPECT_NE(nowhere.find(kShape), nullptr);
}

}  // namespace
}  // namespace llm_dist::kernels
