// From token ids to what a client may see.
#include "src/server/choice.h"

#include <gtest/gtest.h>

#include "tests/text/vocabularies.h"

namespace llm_dist::server {
namespace {

struct Out {
  std::string text;
  std::vector<TokenLogprob> logprobs;
  std::vector<std::string> pieces;
};

class ChoiceTest : public ::testing::Test {
 protected:
  ChoiceTest() {
    auto made = text::Tokenizer::create(text::byte_vocabulary("gpt-2", {}));
    CHECK(made.ok());
    tokenizer = std::move(made).value();
  }

  Out play(Choice& choice,
           std::string_view bytes,
           sched::FinishReason finish = sched::FinishReason::kLength) {
    Out out;
    for (size_t i = 0; i < bytes.size() && !choice.finished(); ++i) {
      TokenRecord record;
      record.token = static_cast<unsigned char>(bytes[i]);
      record.logprob = -1.0f;
      if (i + 1 == bytes.size()) record.finish = finish;
      add(choice.push(record), out);
    }
    return out;
  }
  static void add(Delta delta, Out& out) {
    out.text += delta.text;
    out.pieces.push_back(delta.text);
    for (auto& one : delta.logprobs) out.logprobs.push_back(one);
  }
  Choice make(const GenerateSpec& spec) { return Choice(*tokenizer, spec, std::vector<int32_t>{65}, ""); }

  std::unique_ptr<text::Tokenizer> tokenizer;
};

TEST_F(ChoiceTest, NeverHalfACharacter) {
  GenerateSpec spec;
  Choice choice = make(spec);
  Out out = play(choice, "a\u20ac\U0001F600z");
  EXPECT_EQ(out.text, "a\u20ac\U0001F600z");
  for (const std::string& piece : out.pieces) EXPECT_TRUE(text::is_valid_utf8(piece));
  EXPECT_EQ(choice.num_tokens(), 9);
}

TEST_F(ChoiceTest, ABrokenCharacterAtTheEndBecomesOneReplacement) {
  Choice choice = make({});
  EXPECT_EQ(play(choice, "a\xe2\x82").text, "a\uFFFD");
}

TEST_F(ChoiceTest, AStopStringOverSeveralTokensIsNeverSeen) {
  GenerateSpec spec;
  spec.stop = {"END", "nope"};
  Choice choice = make(spec);
  Out out = play(choice, "one EN two END three");
  EXPECT_EQ(out.text, "one EN two ");
  EXPECT_EQ(choice.finish(), sched::FinishReason::kStop);
  EXPECT_EQ(choice.num_tokens(), 14);
}

TEST_F(ChoiceTest, IncludedStopString) {
  GenerateSpec spec;
  spec.stop = {"END"};
  spec.include_stop = true;
  Choice choice = make(spec);
  EXPECT_EQ(play(choice, "one END three").text, "one END");
}

TEST_F(ChoiceTest, HeldBackTextComesAtTheEnd) {
  GenerateSpec spec;
  spec.stop = {"ENDING"};
  Choice choice = make(spec);
  EXPECT_EQ(play(choice, "the END").text, "the END");
  EXPECT_EQ(choice.finish(), sched::FinishReason::kLength);
}

TEST_F(ChoiceTest, StopStringsWaitForMinTokens) {
  GenerateSpec spec;
  spec.stop = {"x"};
  spec.min_tokens = 4;
  Choice choice = make(spec);
  EXPECT_EQ(play(choice, "axbcxd").text, "axbc");
}

TEST_F(ChoiceTest, TheEndTokenHasNoTextAndALogprobInCompletionsOnly) {
  for (Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    GenerateSpec spec;
    spec.endpoint = endpoint;
    spec.num_logprobs = 0;
    Choice choice = make(spec);
    Out out = play(choice, "hi!", sched::FinishReason::kStop);  // '!' as a stop token
    EXPECT_EQ(out.text, "hi");
    ASSERT_EQ(out.logprobs.size(), endpoint == Endpoint::kChat ? 2u : 3u);
    EXPECT_EQ(choice.num_tokens(), 3);
    if (endpoint == Endpoint::kChat) continue;
    EXPECT_EQ(out.logprobs.back().token, '!');
    EXPECT_EQ(out.logprobs.back().text_offset, 2);
  }
}

TEST_F(ChoiceTest, AStopStringLeavesTheEndTokenNoLogprob) {
  GenerateSpec spec;
  spec.endpoint = Endpoint::kCompletions;
  spec.num_logprobs = 0;
  spec.stop = {"\uFFFD"};  // matched when the end shows that a character is broken
  Choice choice = make(spec);
  Out out = play(choice, "a\xe2!", sched::FinishReason::kStop);
  EXPECT_EQ(out.text, "a");
  EXPECT_EQ(out.logprobs.size(), 1u);
}

TEST_F(ChoiceTest, LogprobsCoverExactlyTheTextSent) {
  GenerateSpec spec;
  spec.num_logprobs = 0;
  spec.stop = {"cd"};
  Choice choice = make(spec);
  Out out = play(choice, "a\u00e9bcde");
  EXPECT_EQ(out.text, "a\u00e9b");
  std::string bytes;
  std::vector<int64_t> offsets;
  for (const TokenLogprob& logprob : out.logprobs) {
    bytes += logprob.bytes;
    offsets.push_back(logprob.text_offset);
  }
  EXPECT_EQ(bytes, out.text);
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 1, 2, 2}));
}

TEST_F(ChoiceTest, EchoComesFirstAndMatchesNoStop) {
  GenerateSpec spec;
  spec.stop = {"b"};
  Choice choice(*tokenizer, spec, std::vector<int32_t>{97, 98}, "ab");
  EXPECT_EQ(play(choice, "ccb").text, "abcc");
}

}  // namespace
}  // namespace llm_dist::server
