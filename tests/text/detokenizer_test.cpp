#include "src/text/detokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tests/text/vocabularies.h"

namespace llm_dist::text {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> make(const TokenizerSpec& spec) {
  auto tokenizer = Tokenizer::create(spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

std::string stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special_tokens) {
  Detokenizer detokenizer(tokenizer, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(piece));
    text += piece;
  }
  return text + detokenizer.flush();
}

TEST(Utf8Stream, AgreesWithTheStandardOnEveryCharacterAndEveryBrokenPair) {
  EXPECT_TRUE(is_valid_utf8("a\u00e9\u20ac\U0001F642\uFFFD"));
  EXPECT_FALSE(is_valid_utf8("\xC1\xBF"));
  EXPECT_FALSE(is_valid_utf8("\xED\xA0\x80"));
  EXPECT_FALSE(is_valid_utf8("\xF4\x90\x80\x80"));
  EXPECT_FALSE(is_valid_utf8("\xE2\x82"));
  EXPECT_TRUE(is_valid_utf8("\xF4\x8F\xBF\xBF"));
}

TEST(Detokenizer, NeverEmitsHalfACharacter) {
  const auto tokenizer = make(byte_vocabulary("gpt-2", {}));
  Detokenizer detokenizer(*tokenizer, true);
  EXPECT_EQ(detokenizer.push('a'), "a");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push(0x99), "");
  EXPECT_EQ(detokenizer.push(0x82), "\U0001F642");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, SkipsSpecialTokensOnlyWhenAsked) {
  const auto tokenizer = make(byte_vocabulary("gpt-2", {}));
  EXPECT_EQ(stream(*tokenizer, {'a', 257, 'b'}, true), "ab");
  EXPECT_EQ(stream(*tokenizer, {'a', 257, 'b'}, false), "a<|end|>b");
}

TEST(Detokenizer, PushesAndFlushAreDecodeForRandomIds) {
  const auto smollm2 = smollm2_vocabulary();
  const auto tokenizer = make(smollm2 ? *smollm2 : byte_vocabulary("gpt-2", {{"\u00e2", "\u0124"}}));
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Ids ids(random() % 60);
    // Half of the rounds over single bytes, where nearly everything is broken.
    const bool bytes_only = round % 2 == 0;
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random() %
                                (bytes_only ? 280u : static_cast<unsigned>(tokenizer->vocab_size())));
    }
    EXPECT_EQ(stream(*tokenizer, ids, round % 3 == 0), tokenizer->decode(ids, round % 3 == 0));
  }
}

TEST(Detokenizer, MetaspaceKeepsSpacesAndJoinsBytes) {
  const auto tokenizer = make(metaspace_vocabulary());
  const Ids ids{264, 259, 261, 3 + 0xE2, 3 + 0x82, 3 + 0xAC, 262, 264, 259, 259, 263};
  EXPECT_EQ(tokenizer->decode(ids, true), "a b\u20acc a  \u00e9");
  EXPECT_EQ(stream(*tokenizer, ids, true), "a b\u20acc a  \u00e9");
}

TEST(Detokenizer, MetaspaceJoinsManyCharactersMadeOfBytes) {
  const auto tokenizer = make(metaspace_vocabulary());
  std::string text = "a";
  for (int i = 0; i < 20; ++i) text += "\u4f60\U0001F642";
  const auto ids = tokenizer->encode(text, {.add_special_tokens = false});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(stream(*tokenizer, *ids, true), text);
}

TEST(Detokenizer, MetaspaceContextKeepsTheFirstSpace) {
  const auto tokenizer = make(metaspace_vocabulary());
  Detokenizer detokenizer(*tokenizer, true);
  detokenizer.set_context(Ids{264, 261});
  EXPECT_EQ(detokenizer.push(264), " a");
}

TEST(Detokenizer, MetaspaceBrokenBytesComeOutAtLast) {
  const auto tokenizer = make(metaspace_vocabulary());
  const std::string text = stream(*tokenizer, Ids(50, 3 + 0xE2), true);
  EXPECT_TRUE(is_valid_utf8(text));
  EXPECT_EQ(text.size(), 50u * 3);
}

TEST(Detokenizer, CostOfAnIdDoesNotGrow) {
  using Clock = std::chrono::steady_clock;
  for (const TokenizerSpec& spec : {byte_vocabulary("gpt-2", {}), metaspace_vocabulary()}) {
    const auto tokenizer = make(spec);
    const auto start = Clock::now();
    const std::string text = stream(*tokenizer, Ids(50000, spec.model.empty() ? 260 : 'a'), true);
    EXPECT_EQ(text.size(), 50000u);
    // Quadratic would be minutes; linear is well under a second, also with sanitizers.
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  }
}

}  // namespace
}  // namespace llm_dist::text
