#include "src/text/detokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

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

constexpr int32_t byte_token(int byte) { return 3 + byte; }

TEST(Detokenizer, MetaspaceBrokenBytesLeaveTheirNeighboursWhole) {
  const auto tokenizer = make(metaspace_vocabulary());
  const auto with = [](Ids front, const Ids& back) {
    front.insert(front.end(), back.begin(), back.end());
    return front;
  };
  const Ids emoji{byte_token(0xF0), byte_token(0x9F), byte_token(0x99), byte_token(0x82)};
  const Ids half(emoji.begin(), emoji.begin() + 3);
  const Ids newline{byte_token('\n')};
  EXPECT_EQ(stream(*tokenizer, with(with({260}, newline), with(half, {260})), true), "a\n\uFFFDa");
  EXPECT_EQ(stream(*tokenizer, with(with({260}, newline), half), true), "a\n\uFFFD");
  EXPECT_EQ(stream(*tokenizer, with(with({260}, emoji), with(half, {264})), true), "a\U0001F642\uFFFD a");
  EXPECT_EQ(stream(*tokenizer, with(half, emoji), true), "\uFFFD\U0001F642");
  EXPECT_EQ(stream(*tokenizer, with(with(half, newline), {264}), true), "\uFFFD\n a");
}

// Decoding strips the text's first space; in all else a token is its bytes.
TEST(Detokenizer, MetaspacePushesAndFlushAreTheBytesOfRandomIds) {
  const auto tokenizer = make(metaspace_vocabulary());
  std::mt19937 random(11);
  for (int round = 0; round < 600; ++round) {
    Ids ids;
    std::string bytes;
    const size_t size = random() % 40;
    while (ids.size() < size) {
      const std::string character = utf8(static_cast<uint32_t>(random() % 3 == 0 ? random() % 0x80 : 0x4f60));
      const uint32_t kind = random() % 8;
      // Characters made of bytes, whole or cut short; any token; any byte from 0x80 on.
      const size_t cut = kind == 0 ? 1 : 0;
      if (kind < 4) {
        for (size_t i = 0; i + cut < character.size(); ++i) {
          ids.push_back(byte_token(static_cast<unsigned char>(character[i])));
        }
      } else if (kind < 7) {
        ids.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(tokenizer->vocab_size())));
      } else {
        ids.push_back(byte_token(static_cast<int>(0x80 + random() % 0x80)));
      }
    }
    for (const int32_t id : ids) {
      if (!tokenizer->is_special(id)) bytes += tokenizer->token_bytes(id);
    }
    if (bytes.starts_with(' ')) bytes.erase(0, 1);
    std::string expected;
    Utf8Stream whole;
    whole.push(bytes, expected);
    whole.flush(expected);
    EXPECT_EQ(stream(*tokenizer, ids, true), expected);
    if (is_valid_utf8(bytes)) {
      EXPECT_EQ(tokenizer->decode(ids, true), expected);
    }
  }
}

TEST(Detokenizer, MetaspaceEmitsACharacterWithItsLastByte) {
  const auto tokenizer = make(metaspace_vocabulary());
  Detokenizer detokenizer(*tokenizer, true);
  EXPECT_EQ(detokenizer.push(byte_token('\n')), "\n");
  EXPECT_EQ(detokenizer.push(byte_token(0xE2)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0x82)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0xAC)), "\u20ac");
  EXPECT_EQ(detokenizer.push(byte_token(0xE2)), "");
  EXPECT_EQ(detokenizer.push(264), "\uFFFD a");
}

TEST(Detokenizer, MetaspaceContextThatEndsInsideACharacterBreaksNothing) {
  const auto tokenizer = make(metaspace_vocabulary());
  Detokenizer detokenizer(*tokenizer, true);
  detokenizer.set_context(
      Ids{260, 260, byte_token(0x9F), byte_token(0x99), byte_token(0x82), byte_token(0xE2)});
  EXPECT_EQ(detokenizer.push(byte_token(0xC3)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0xA9)), "\u00e9");
}

// A byte-level decoder inside a sequence is decoded in windows, without byte tokens to speak of.
TEST(Detokenizer, BrokenBytesOfAnyDecoderAreValidUtf8) {
  TokenizerSpec spec = as_tokenizer_json(byte_vocabulary("gpt-2", {}));
  const std::string decoder =
      R"("decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";
  const size_t at = spec.tokenizer_json.find(decoder);
  ASSERT_NE(at, std::string::npos);
  spec.tokenizer_json.replace(
      at, decoder.size(), R"("decoder":{"type":"Sequence","decoders":[)" + decoder.substr(10) + "]}");
  const auto tokenizer = make(spec);
  ASSERT_FALSE(tokenizer->is_byte_level());
  Ids ids(7, 0xE2);
  ids.insert(ids.end(), {0xF0, 0x9F, 0x99, 0x82, 'a'});
  const std::string text = stream(*tokenizer, ids, true);
  EXPECT_TRUE(text.ends_with("\uFFFDa")) << text;
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
