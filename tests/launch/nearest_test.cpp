#include "launch/nearest.h"

#include <gtest/gtest.h>

namespace llm_dist::launch {
namespace {

TEST(Nearest, CountsEdits) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(Nearest, SuggestsOnlyWhatIsNear) {
  std::vector<std::string> known = {"--max-model-len", "--max-num-seqs", "--port"};
  EXPECT_EQ(nearest("--max-model-length", known), "--max-model-len");
  EXPECT_EQ(nearest("--prot", known), "--port");
  EXPECT_EQ(nearest("--quantize-everything", known), "");
}

}  // namespace
}  // namespace llm_dist::launch
