// What replies take in memory: a program of its own, which counts its allocations.
#include "tests/base/allocation_count.h"
#include "tests/server/server_fixture.h"

namespace llm_dist::server {
namespace {

constexpr const char* kTextPath = "/v1/completions";
constexpr int kPromptTokens = 400;
constexpr int kChoices = 64;
constexpr int kTop = 20;
constexpr int64_t kLogprobs = int64_t{kPromptTokens} * kChoices * (kTop + 1);

class ReplyMemory : public ServerFixture {
 protected:
  // Of a completion of that prompt.
  int64_t allocations_for(const char* fields) {
    Json body = completion(std::string(kPromptTokens, 'p'));
    body["n"] = kChoices;
    body.update(Json::parse(fields));
    const std::string sent = body.dump();
    const int64_t before = num_allocations();
    const http::Response response = post(kTextPath, sent);
    const int64_t after = num_allocations();
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_GT(static_cast<int64_t>(response.body.size()), 10 * kLogprobs) << "all of them are there";
    return after - before;
  }
};

TEST_F(ReplyMemory, APromptsLogprobsAreWrittenOnceForAllItsChoices) {
  EXPECT_LT(allocations_for(R"({"prompt_logprobs": 20})"), kLogprobs / 4);
}

TEST_F(ReplyMemory, AnEchosLogprobsAreWrittenStraightToText) {
  EXPECT_LT(allocations_for(R"({"echo": true, "logprobs": 20})"), kLogprobs / 4);
}

}  // namespace
}  // namespace llm_dist::server
